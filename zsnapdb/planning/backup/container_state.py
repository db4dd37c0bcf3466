"""The folders of zsnapdb in a container: they must be the host's, or they are lost with the container. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zsnapdb.planning.backup.fitness import FitnessFinding, unfit
from zsnapdb.planning.backup.placement import MountedFilesystem, mount_of


def judge_state(
    folders: Iterable[str], mounts: Sequence[MountedFilesystem], *, is_container: bool
) -> list[FitnessFinding]:
    """Return a finding if a folder lies in the root file system of a container. On a host there is none."""
    if not is_container:
        return []
    lost = [folder for folder in folders if (mount := mount_of(folder, mounts)) is None or mount.path == "/"]
    if not lost:
        return []
    options = " ".join(f"--volume {folder}:{folder}:rshared" for folder in lost)
    return [
        unfit(
            "container",
            f"records, journals and locks in {', '.join(lost)} would be lost with this container",
            f"mount the folders of the host: `{options}`",
        )
    ]
