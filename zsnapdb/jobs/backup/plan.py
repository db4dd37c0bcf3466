"""The plan of a backup: its checks, its base and the form of its streams. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zsnapdb.base.errors import NotFound
from zsnapdb.jobs.backup import resume as interrupted
from zsnapdb.jobs.backup.preflight import Observed
from zsnapdb.jobs.backup.resume import InterruptedBackup
from zsnapdb.jobs.backup.send_format import choose
from zsnapdb.jobs.backup.server_source import open_source
from zsnapdb.jobs.backup.source_interface import Observation, SourceOpener
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import own_snapshots
from zsnapdb.jobs.base.set_properties import STORED
from zsnapdb.jobs.record import host_record
from zsnapdb.jobs.record.host_record import StoredCheck
from zsnapdb.planning import order
from zsnapdb.planning.backup import fitness
from zsnapdb.planning.backup.at_rest import judge_sent
from zsnapdb.planning.backup.send_form import FormChoice
from zsnapdb.planning.backup_chain import BasePlan, choose_base
from zsnapdb.planning.damage_register import DamageRegister, sentences
from zsnapdb.planning.repository.known_backups import Provenance
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.zfs import snapshots
from zsnapdb.zfs.snapshots import OwnedSnapshot


@dataclass(frozen=True)
class BackupPlan:
    """The plan of a backup: the checks, the hooks, the deadline of the lock in seconds, and the base with its reasons.

    `form` is that of the streams. `interrupted` are the unfinished backups of earlier runs, each with its decision.
    `sent_from` is the local snapshot or bookmark of the base by role, by its full name; empty for a full backup.
    `numbers` are the sequence numbers of the stored backups.
    """

    observed: Observation
    hooks: tuple[str, ...]
    deadline: float
    base: BasePlan[Summary]
    form: FormChoice
    interrupted: tuple[InterruptedBackup, ...] = ()
    sent_from: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[int | None, ...] = ()
    provenance: Provenance = field(default_factory=Provenance)
    """The comparison of the stored backups with this host's record."""

    @property
    def server(self) -> Observed | None:
        """The observed server; None if the source is a machine."""
        return self.observed if isinstance(self.observed, Observed) else None

    @property
    def to_hold(self) -> list[str]:
        """The snapshots from which the backup is sent. A bookmark cannot be held."""
        return [name for name in self.sent_from.values() if "@" in name]


def plan(
    instance: Instance,
    observed: Observation,
    repository: Repository | None,
    known: Summaries,
    *,
    full: bool = False,
    fresh: bool = False,
    before: int | None = None,
    seen: Sequence[OwnedSnapshot] | None = None,
) -> BackupPlan:
    """Return the plan of a backup from the repository and the local snapshots; change nothing.

    `known` are the backups that the repository lists now; none if there is no repository yet. `before` is the
    transaction group of a set that was created earlier: no later backup can be its base. `seen` are the snapshots of
    the instance's sets on this host, if the caller has just read them.
    """
    damage = known_damage(repository, instance.name) if repository is not None else DamageRegister()
    damaged = [
        fitness.warning("repository", f"{error.message}; this backup is skipped", error.hint)
        for error in known.unreadable.values()
    ]
    listed = damage.of(backup.backup_id for backup in known.backups)
    damaged += [fitness.warning("repository", text, "see `zsnapdb verify`") for text in sentences(listed)]
    checked = StoredCheck()
    if repository is not None:
        checked = host_record.check(instance, repository, known.backups, known.unread, is_writing=True, seen=seen)
        damaged += [fitness.warning("repository", f.text, f.hint) for f in checked.findings if f.is_warning]
    hooks = tuple(hook.describe() for hook in instance.hooks())
    known = replace(known, backups=checked.ordered(known.backups))
    trusted = checked.provenance.trusted(known.backups)
    candidates = trusted if before is None else order.made_before(trusted, before)

    def base_among(local: Mapping[str, Collection[int]]) -> BasePlan[Summary]:
        return choose_base(
            candidates,
            local,
            instance.send_flags(),
            now=instance.host.now(),
            policy=instance.chain_policy(),
            full=full,
            damaged={name: item.describe() for name, item in damage.stored().items()},
            unchosen=checked.unchosen,
        )

    local = _points_of_sets(instance, seen)
    base = base_among(local)
    if candidates and not full and base.base is not candidates[-1]:
        # The snapshot of a newer backup may have been received by a restore, or renamed.
        local = _all_points(instance)
        base = base_among(local)
    unfinished = tuple(interrupted.look(instance, repository, fresh=fresh)) if repository is not None else ()
    form = choose(instance, observed.volumes, base.base, known.backups)
    sent_from = {volume.role: local[volume.role][volume.guid] for volume in base.base.volumes} if base.base else {}
    deadline = instance.settings.lock.deadline
    observed = observed.with_findings(damaged)
    numbers = checked.numbers(known.backups)
    return BackupPlan(observed, hooks, deadline, base, form, unfinished, sent_from, numbers, checked.provenance)


def plan_now(
    instance: Instance, *, full: bool = False, fresh: bool = False, opener: SourceOpener = open_source
) -> BackupPlan:
    """Observe the source, read the repository, and return the plan of a backup; change nothing."""
    with opener(instance) as source:
        observed = source.observe()
    refuse_clear(instance, observed)
    instance = instance.with_volumes(observed.volumes)
    try:
        repository = instance.open_repository()
    except NotFound:
        # The first backup creates the repository. A missing bucket is an error, which this check raises.
        instance.open_store()[0].check()
        repository = None
    known = instance.summaries(repository) if repository is not None else Summaries((), {})
    return plan(instance, observed, repository, known, full=full, fresh=fresh)


def refuse_clear(instance: Instance, observed: Observation) -> None:
    """Raise PreflightError if an encrypted volume would be stored unencrypted, or an unencrypted one raw."""
    is_encrypting, send = bool(instance.repository.encryption.recipients), instance.repository.stream.send
    findings = judge_sent(observed.volumes.values(), observed.ciphers, send, is_encrypting=is_encrypting)
    error = fitness.objection(findings)
    if error is not None:
        raise error


def _points_of_sets(instance: Instance, seen: Sequence[OwnedSnapshot] | None) -> dict[str, dict[int, str]]:
    """Return the possible bases in sets and bookmarks, per role: name by GUID, snapshots before bookmarks.

    Other snapshots are not listed, however many there are.
    """
    places = set(instance.volumes.values())
    if seen is None:
        seen = own_snapshots(instance, places, states=(STORED,))
    points = snapshots.bookmarks(places)
    for one in seen:
        if one.snapshot.dataset in points:
            points[one.snapshot.dataset][one.snapshot.guid] = one.snapshot.full_name
    return {role: points[dataset] for role, dataset in instance.volumes.items()}


def _all_points(instance: Instance) -> dict[str, dict[int, str]]:
    """Return every possible base of an increment, in the form of `_points_of_sets`."""
    points = snapshots.send_points(instance.volumes.values())
    return {role: points[dataset].names for role, dataset in instance.volumes.items()}
