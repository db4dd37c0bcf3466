"""`zsnapdb backup --set`: stores a set of `zsnapdb snapshot` as a backup. Its server is not asked and may be down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from zsnapdb.base.errors import NotThere, PreflightError
from zsnapdb.jobs.backup import local_manifests
from zsnapdb.jobs.backup.early_set import EarlySet
from zsnapdb.jobs.backup.source import SourceDescription
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.set_properties import LOCAL
from zsnapdb.jobs.host.local_sets import local_sets
from zsnapdb.planning.backup.fitness import FitnessFinding, warnings

LATEST = "latest"
"""Names the newest local set."""


@dataclass(frozen=True)
class _RecordedSource:
    """The source of a set that was made earlier: what was judged then is not judged again."""

    volumes: Mapping[str, str]
    ciphers: Mapping[str, str]
    findings: tuple[FitnessFinding, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        return warnings(self.findings)

    def with_findings(self, more: Iterable[FitnessFinding]) -> _RecordedSource:
        """Return the observation with more findings at the end."""
        return replace(self, findings=(*self.findings, *more))


def open_set(instance: Instance, requested: str) -> EarlySet:
    """Return the local set of that id, or the newest for `latest`. Local retention spares the set from now on.

    NotThere if this host has no such set whole; PreflightError if nothing describes its server.
    """
    known = local_manifests.load(instance)
    if instance.settings.volumes is None and known:
        instance = instance.with_volumes({volume.role: volume.dataset for volume in known[-1].volumes})
    sets = {one.backup_id: one for one in local_sets(instance, LOCAL)}
    name = next(reversed(sets), requested) if requested == LATEST else requested
    if name not in sets:
        raise NotThere(
            f"instance {instance.name} has no local set {requested} on this host",
            hint="`zsnapdb list --local` lists the sets; one with state `local` can be stored",
        )
    manifest = next((one for one in known if one.backup_id == name), None)
    if manifest is None:
        raise PreflightError(
            f"nothing on this host describes the server of local set {name}, so no backup can be made of the set",
            hint="run `zsnapdb backup`, which makes a new set",
        )
    made = sets[name]
    described = SourceDescription(manifest.source, {volume.role: volume.type for volume in manifest.volumes})
    ciphers = {one.dataset: one.type.encryption for one in manifest.volumes if one.type.encryption is not None}
    early = EarlySet(instance, _RecordedSource(instance.volumes, ciphers), described, made, manifest.created, 0.0)
    early.spare()
    return early
