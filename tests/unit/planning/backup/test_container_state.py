"""A container that keeps the records of zsnapdb in its own root makes no backup; a host always may."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.jobs.backup.preflight import is_container
from zsnapdb.planning.backup.fitness import Severity, judge_state
from zsnapdb.planning.backup.placement import MountedFilesystem

ROOT = MountedFilesystem("/", "overlay", "overlay", is_bind=False)
STATE = MountedFilesystem("/var/lib/zsnapdb", "ext4", "/dev/sda1", is_bind=True)
LOCKS = MountedFilesystem("/run/zsnapdb", "tmpfs", "tmpfs", is_bind=True)
FOLDERS = ("/var/lib/zsnapdb", "/run/zsnapdb")


@pytest.mark.parametrize(
    ("mounts", "lost"),
    [((ROOT,), FOLDERS), ((ROOT, STATE), FOLDERS[1:]), ((ROOT, LOCKS), FOLDERS[:1]), ((ROOT, STATE, LOCKS), ())],
)
def test_container_without_mounted_state_is_unfit(mounts: tuple[MountedFilesystem, ...], lost: tuple[str, ...]) -> None:
    found = judge_state(FOLDERS, mounts, is_container=True)
    assert [one.severity for one in found] == ([Severity.UNFIT] if lost else [])
    assert all(f"--volume {folder}:{folder}:rshared" in one.hint for one in found for folder in lost)
    assert judge_state(FOLDERS, mounts, is_container=False) == []


def test_container_is_known_by_image_runtime_or_cluster(tmp_path: Path) -> None:
    assert not is_container(tmp_path, {"container": "lxc"})
    assert is_container(tmp_path, {"container": "oci"})
    assert is_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (tmp_path / ".dockerenv").touch()
    assert is_container(tmp_path, {})
