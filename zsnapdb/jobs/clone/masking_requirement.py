"""Decides whether a clone must be masked, and masks it before its first start.

If masking is required, no unmasked clone is handed out.
"""

from __future__ import annotations

from collections.abc import Collection

from zsnapdb.base.domain_types import Position
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.config.settings import MaskingSettings, Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import masking
from zsnapdb.jobs.clone.clone_info import MASKED_BY_PROPERTY, MASKED_PROPERTY, NOT_MASKED, RULES_PROPERTY, CloneInfo
from zsnapdb.jobs.clone.isolated_start import CloneServer
from zsnapdb.jobs.clone.masking import MaskingReport
from zsnapdb.jobs.clone.sources import CloneSource
from zsnapdb.planning.clone.lease import SourceKind, stamp
from zsnapdb.planning.clone.masking import is_masked
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY, SourceServer
from zsnapdb.zfs import datasets, snapshots


def masks_new_clone(settings: MaskingSettings, *, requested: bool) -> bool:
    """Return whether a new clone must be masked if its source is not yet masked.

    If so, first check that the masking files can be used.

    Raises:
        ConfigError: a masking file is not readable.
        HookError: a masking script cannot be run.
    """
    masks = is_masked(required=settings.required, configured=bool(settings.run), requested=requested)
    if masks:
        masking.check(settings)
    return masks


def rules_of(settings: MaskingSettings, *, requested: bool) -> str:
    """Return the digest of the rules by which a clone must be masked; "" if masking is not required.

    Raises the errors of `masks_new_clone`.
    """
    return masking.digest(settings) if masks_new_clone(settings, requested=requested) else ""


def rules_of_clone(settings: Settings, info: CloneInfo) -> str:
    """Return the digest of the rules by which the clone must be masked.

    Return "" if masking is not required, or if the clone's instance is not configured.
    """
    configured = settings.instance.get(info.instance)
    return rules_of(configured.masking, requested=info.asks_for_masking) if configured is not None else ""


def rules_for(source: CloneSource, rules: str) -> str:
    """Return the digest of the rules by which the source must be masked; "" if it is a commit of a masked clone.

    Raises:
        PreflightError: the commit was masked by other rules.
    """
    if not rules or not is_masked_commit(source):
        return rules
    refuse_other_rules(source.names, rules)
    return ""


def is_masked_commit(source: CloneSource) -> bool:
    """Return whether the source is a commit of a masked clone, according to the properties of its snapshots."""
    return source.kind is SourceKind.COMMIT and not source.rules and are_masked(source.names, "")


def masked_by(names: Collection[str]) -> str:
    """Return the digest of the rules that masked the volumes or commits; "" if digests differ or one is missing."""
    seen = datasets.properties_of(list(names), [MASKED_BY_PROPERTY])
    found = {
        values[MASKED_BY_PROPERTY].value if values[MASKED_BY_PROPERTY].is_local else "" for values in seen.values()
    }
    return found.pop() if len(found) == 1 else ""


def refuse_other_rules(commit: Collection[str], rules: str) -> None:
    """Raise PreflightError if the snapshots of the commit were masked by rules with another digest.

    A commit from an earlier version, which does not record the rules, is accepted.
    """
    if masked_by(commit) not in ("", rules):
        raise PreflightError(
            f"commit {min(commit)} was masked with earlier rules, and cannot be masked again",
            hint="create a clone of the instance, which is masked with the current rules, and commit that",
        )


def ensure(
    settings: MaskingSettings, host: Host, clone: CloneServer, position: Position, rules: str, volumes: Collection[str]
) -> MaskingReport | None:
    """Mask the clone with the given volumes by the rules with the digest `rules`. If `rules` is empty, do not mask.

    Return None if nothing was masked. The volumes are marked as masked only when masking is complete. A clone is
    already masked if its source is a commit of a masked clone, or a prepared set that was masked by the same rules.

    Raises:
        PreflightError: a volume has a snapshot from before the end of masking, or the data was masked by other rules.
    """
    name, origin = clone.record.name, clone.record.origin
    is_of_commit = clone.record.source == SourceKind.COMMIT
    origins = _origins(volumes) if is_of_commit or rules else []
    inherited = bool(origins) and are_masked(origins, rules)
    if rules and not inherited and origins and have_rules(origins):
        raise PreflightError(
            f"the data of clone {name} was masked with earlier rules, and cannot be masked again",
            hint=f"run `zsnapdb clone reset {name}`: it masks the original data with the current rules",
        )
    if rules and inherited and is_of_commit:
        refuse_other_rules(origins, rules)
    report = None
    if rules and not inherited:
        instance = clone.record.instance
        report = masking.mask(
            clone.copy, settings, rules, position, origin.unlogged_gtids, instance=instance, clone=name
        )
        refuse_snapshots(volumes)
    if report is not None or inherited:
        facts = {MASKED_PROPERTY: stamp(host.latest())}
        by = masked_by(origins) if is_of_commit and report is None else rules
        if by:
            facts[MASKED_BY_PROPERTY] = by
        if report is not None:
            facts[ORIGIN_PROPERTY] = without_binlogs(origin, position).encode()
        datasets.set_on_all(list(volumes), facts)
    return report


def masks_at_start(settings: Settings, info: CloneInfo) -> bool:
    """Return whether the clone must be masked at its first start.

    This is the case if masking is required and the clone's source is not masked.
    """
    rules = rules_of_clone(settings, info)
    origins = _origins(info.volumes.values()) if rules else []
    return bool(rules) and not (origins and are_masked(origins, rules))


def refuse_snapshots(volumes: Collection[str]) -> None:
    """Raise PreflightError if a volume has a snapshot from before the end of masking.

    Accounts that can read the mounted volume can read its snapshots in `.zfs/snapshot` (zfsprops(7), snapdir).
    """
    early = sorted({snapshot.full_name for dataset in volumes for snapshot in snapshots.below(dataset, ())})
    if early:
        raise PreflightError(
            f"the clone has snapshots from before its masking was complete: {', '.join(early)}",
            hint="stop the program that makes snapshots of the clones' datasets, then create the clone again",
        )


def without_binlogs(origin: SourceServer, position: Position) -> SourceServer:
    """Return the origin of a copy after its binlogs were removed: its GTIDs up to the position are in no binlog.

    MySQL keeps these GTIDs in mysql.gtid_executed (refman 8.4, "mysql.gtid_executed Table").
    """
    if not isinstance(position.gtids, GtidSet):
        return origin
    return origin.model_copy(update={"unlogged": str(position.gtids.union(origin.unlogged_gtids or GtidSet.parse("")))})


def _origins(volumes: Collection[str]) -> list[str]:
    """Return the snapshots from which the datasets were cloned; empty if one of the datasets has no origin."""
    origins = [values["origin"].value for values in datasets.properties_of(list(volumes), ["origin"]).values()]
    return [] if any(origin in ("", datasets.UNSET) for origin in origins) else origins


def are_masked(made: Collection[str], rules: str) -> bool:
    """Return whether all given snapshots record that their data is masked.

    If the snapshots belong to a prepared set, they must also record that the rules with the digest `rules` masked it.
    Snapshots of a commit record no rules. Inherited properties are ignored, because they may come from a masked clone
    that later became a normal server.
    """
    marks = datasets.properties_of(list(made), [MASKED_PROPERTY, RULES_PROPERTY])
    return all(
        values[MASKED_PROPERTY].is_local
        and values[MASKED_PROPERTY].value != NOT_MASKED
        and (not values[RULES_PROPERTY].is_local or values[RULES_PROPERTY].value == rules)
        for values in marks.values()
    )


def have_rules(made: Collection[str]) -> bool:
    """Return whether one of the given snapshots records the rules that masked the data of its prepared set."""
    return any(
        values[RULES_PROPERTY].is_local for values in datasets.properties_of(list(made), [RULES_PROPERTY]).values()
    )


def is_of_prepared(volumes: Collection[str]) -> bool:
    """Return whether the given datasets were cloned from a masked prepared set."""
    origins = _origins(volumes)
    return bool(origins) and have_rules(origins)


def refuse_unmasked(settings: Settings, info: CloneInfo) -> None:
    """Raise PreflightError if the clone is not masked although its instance requires masking.

    This happens if the clone was started before masking was required.
    """
    instance = settings.instance.get(info.instance)
    if instance is None or not instance.masking.required:
        return
    marks = datasets.properties_of(list(info.volumes.values()), [MASKED_PROPERTY])
    if not all(values[MASKED_PROPERTY].is_local for values in marks.values()):
        raise PreflightError(
            f"clone {info.label} is not masked, and instance {info.instance} requires it",
            hint=f"run `zsnapdb clone reset {info.label}`: it masks the clone",
            about=(info.owner,),
        )
