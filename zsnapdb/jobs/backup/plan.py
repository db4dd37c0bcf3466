"""The plan of a backup: its checks, its base and the format of its streams. Planning changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zsnapdb.base import safe_open
from zsnapdb.base.errors import NotFound
from zsnapdb.base.safe_open import UnsafeFileError
from zsnapdb.jobs.backup import resume as interrupted
from zsnapdb.jobs.backup.preflight import Observed
from zsnapdb.jobs.backup.resume import InterruptedBackup
from zsnapdb.jobs.backup.server_source import open_source
from zsnapdb.jobs.backup.source_interface import Observation, SourceOpener
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.instance_snapshots import own_snapshots
from zsnapdb.jobs.base.snapshot_set_properties import STORED
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.host_backup_record import StoredCheck
from zsnapdb.planning import creation_order
from zsnapdb.planning.backup import fitness
from zsnapdb.planning.backup.dataset_encryption import judge_sent
from zsnapdb.planning.backup.send_form import (
    AUTO,
    SEND_FLAGS,
    Compressibility,
    FormChoice,
    SendForm,
    ZstdEffect,
    choose_form,
    form_of,
)
from zsnapdb.planning.backup_chain import BasePlan, choose_base
from zsnapdb.planning.damage_register import DamageRegister, sentences
from zsnapdb.planning.repository.known_backups import Provenance
from zsnapdb.repository.catalogue import Summaries, Summary
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import known_damage
from zsnapdb.stream.chunks import Workspace, room_for
from zsnapdb.zfs import datasets, replaced_data, snapshots
from zsnapdb.zfs.snapshots import OwnedSnapshot

_BLOCK, _BLOCKS = 128 << 10, 64
_MOST_FILES = 100_000
"""The maximum number of a volume's files from which sample blocks are read. The other files are ignored."""


@dataclass(frozen=True)
class _File:
    path: Path
    size: int


def zstd_effect(mountpoints: Iterable[Path], level: int) -> ZstdEffect | None:
    """Return how much zstd at this level compresses 64 sample blocks of the files below the mount points.

    Return None if this account can read no bytes other than zeros in the files. Files on other file systems are not
    read, and links are not followed.
    """
    files = [file for mountpoint in mountpoints for file in _some_files(mountpoint)]
    blocks = list(_blocks(files))
    plain = b"".join(blocks)
    if not plain:
        return None
    began = time.thread_time()
    size = Workspace().compress(plain, level, memoryview(bytearray(room_for(len(plain)))))
    return ZstdEffect(
        size / len(plain), f"in {len(blocks)} sampled blocks", (time.thread_time() - began) / len(plain) * (1 << 30)
    )


def _some_files(mountpoint: Path) -> list[_File]:
    found: list[_File] = []
    # A backup must not fail because a sample block cannot be read.
    with contextlib.suppress(OSError, UnsafeFileError):
        found.extend(itertools.islice(_files(mountpoint), _MOST_FILES))
    return found


def _files(mountpoint: Path) -> Iterator[_File]:
    with safe_open.folder(mountpoint) as top:
        device = os.stat(top).st_dev
        for folder, below, names, at in os.fwalk(".", dir_fd=top):
            # Another volume may be mounted in this folder.
            below[:] = [name for name in below if _device(name, at) == device]
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=at, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_size:
                        yield _File(mountpoint / folder / name, status.st_size)


def _device(name: str, at: int) -> int | None:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_dev
    except FileNotFoundError:
        return None


def _blocks(files: list[_File]) -> Iterator[bytes]:
    """Yield evenly spaced blocks of the concatenated files. Skip blocks of zeros, because streams omit them."""
    ends = list(itertools.accumulate(file.size for file in files))
    step = max(_BLOCK, ends[-1] // _BLOCKS) if ends else _BLOCK
    wanted, before = step // 2, 0
    for file, end in zip(files, ends, strict=True):
        while wanted < end:
            block = _read(file.path, (wanted - before) // _BLOCK * _BLOCK)
            if block.strip(b"\0"):
                yield block
            wanted += step
        before = end


def _read(path: Path, offset: int) -> bytes:
    # The server may have removed the file, or its account may have replaced it.
    with contextlib.suppress(OSError, UnsafeFileError), safe_open.open_to_read(path) as file:
        return os.pread(file.fileno(), _BLOCK, offset)
    return b""


_LYING, _LOGICAL, _MOUNTED, _MOUNTPOINT = "referenced", "logicalreferenced", "mounted", "mountpoint"


def choose_format(
    instance: Instance, volumes: Mapping[str, str], base: Summary | None, stored: Sequence[Summary]
) -> FormChoice:
    """Return the stream format of the next backup. The mapping `volumes` gives the dataset of each role.

    If `send` is not configured, an increment gets the same format as its base.
    """
    setting = instance.repository.stream.send
    if setting != AUTO:
        return FormChoice(SendForm(setting), "by the setting send")
    if base is not None:
        continued = form_of(base.volumes[0].send_flags)
        assert continued is not None, "a base was sent with flags of ours"
        return FormChoice(continued, "as the rest of the chain")
    by_dataset = datasets.properties_of(list(volumes.values()), [_LYING, _LOGICAL, _MOUNTED, _MOUNTPOINT])
    level = instance.upload_settings().level
    mounted = [Path(each[_MOUNTPOINT].value) for each in by_dataset.values() if each[_MOUNTED].value == "yes"]
    return choose_form(
        Compressibility(
            logical=sum(int(values[_LOGICAL].value) for values in by_dataset.values()),
            lying=sum(int(values[_LYING].value) for values in by_dataset.values()),
            zstd=_stored_effect(stored) or (zstd_effect(mounted, level) if level else None),
            level=level,
            processors=len(os.sched_getaffinity(0)),
        )
    )


def _stored_effect(stored: Sequence[Summary]) -> ZstdEffect | None:
    """Return how well zstd compressed the newest full backup with plain streams; None if there is no such backup.

    The list `stored` contains the backups in the repository, oldest first.
    """
    plain = SEND_FLAGS[SendForm.PLAIN]
    for backup in reversed(stored):
        if backup.is_full and all(v.send_flags == plain for v in backup.volumes) and backup.plain_size:
            return ZstdEffect(backup.stored_size / backup.plain_size, "in the last plain full backup")
    return None


@dataclass(frozen=True)
class BackupPlan:
    """The plan of a backup: its checks and hooks, the time limit of its lock in seconds, and its base with the reasons.

    The streams have the format `form`. The list `interrupted` contains the unfinished backups of earlier runs, each
    with a decision: continue, finish, abandon or leave. The mapping `sent_from` gives the full name of the base's local
    snapshot or bookmark by role. It is empty for a full backup. The set `numbers` contains the sequence numbers of the
    stored backups.
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
    """The result of comparing the stored backups with this host's record."""

    @property
    def server(self) -> Observed | None:
        """The observed server; None if the source is a machine."""
        return self.observed if isinstance(self.observed, Observed) else None

    @property
    def to_hold(self) -> list[str]:
        """The snapshots from which the backup is sent. Bookmarks are left out, because ZFS cannot hold them."""
        return [name for name in self.sent_from.values() if "@" in name]


def _warnings(known: Summaries, damage: DamageRegister) -> list[fitness.FitnessFinding]:
    skipped = [
        fitness.warning("repository", f"{error.message}; this backup is skipped", error.hint)
        for error in known.unreadable.values()
    ]
    listed = damage.of(backup.backup_id for backup in known.backups)
    return skipped + [fitness.warning("repository", text, "see `zsnapdb verify`") for text in sentences(listed)]


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

    The argument `known` lists the backups in the repository; it is empty if there is no repository yet. If the
    transaction group `before` of a set is given, the base must be older than this group. The argument `seen` contains
    the snapshots of the instance's sets on this host, if the caller has just read them.
    """
    damage = known_damage(repository, instance.name) if repository is not None else DamageRegister()
    damaged = _warnings(known, damage)
    checked = StoredCheck()
    if repository is not None:
        checked = host_backup_record.check(
            instance, repository, known.backups, known.unread, is_writing=True, seen=seen
        )
        damaged += [fitness.warning("repository", f.text, f.hint) for f in checked.findings if f.is_warning]
    hooks = tuple(hook.describe() for hook in instance.hooks())
    known = replace(known, backups=checked.ordered(known.backups))
    trusted = checked.provenance.trusted(known.backups)
    candidates = trusted if before is None else creation_order.made_before(trusted, before)

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
        # A restore may have received the snapshot of a newer backup, or the snapshot may have been renamed.
        local = _all_points(instance)
        base = base_among(local)
    lost = _abandoned(local, base.base)
    if lost:
        local = {role: {guid: name for guid, name in own.items() if name not in lost} for role, own in local.items()}
        base = base_among(local)
        damaged += [fitness.warning("base", lost[name], "see `zpool history -i`") for name in sorted(lost)]
    unfinished = tuple(interrupted.look(instance, repository, fresh=fresh)) if repository is not None else ()
    form = choose_format(instance, observed.volumes, base.base, known.backups)
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
        # If the repository does not exist yet, the first backup creates it. Raise an error now if the bucket is
        # missing.
        instance.open_store()[0].check()
        repository = None
    known = instance.summaries(repository) if repository is not None else Summaries((), {})
    return plan(instance, observed, repository, known, full=full, fresh=fresh)


def refuse_clear(instance: Instance, observed: Observation) -> None:
    """Raise PreflightError if an encrypted volume would be stored unencrypted, or an unencrypted volume sent raw."""
    is_encrypting, send = bool(instance.repository.encryption.recipients), instance.repository.stream.send
    findings = judge_sent(observed.volumes.values(), observed.ciphers, send, is_encrypting=is_encrypting)
    fitness.require_fit(findings)


def _abandoned(local: Mapping[str, Mapping[int, str]], base: Summary | None) -> dict[str, str]:
    """Return the bookmarks that cannot be a base, with reasons; empty if the base is not a bookmark."""
    used = [local[volume.role][volume.guid] for volume in base.volumes] if base is not None else []
    marks = [name for name in used if "#" in name]
    if not marks:
        return {}
    places = {name.partition("#")[0] for own in local.values() for name in own.values() if "#" in name}
    lost = replaced_data.abandoned_bookmarks(places, if_unknown=True)
    if lost.keys().isdisjoint(marks):
        return {}
    return {
        name: f"bookmark {name} is no base: nothing proves that the present data comes from it, because"
        " `zfs receive -F` keeps the bookmarks of data that it replaces"
        for name in lost
    }


def _points_of_sets(instance: Instance, seen: Sequence[OwnedSnapshot] | None) -> dict[str, dict[int, str]]:
    """Return the possible bases of each role, by GUID: the names of bookmarks and of snapshots that belong to sets.

    Snapshots that belong to no set are not listed, because there may be very many.
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
    """Return the names of all snapshots and bookmarks by role and GUID."""
    points = snapshots.send_points(instance.volumes.values())
    return {role: points[dataset].names for role, dataset in instance.volumes.items()}
