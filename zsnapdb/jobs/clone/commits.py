"""Commits of a clone. A commit is a snapshot set of the clone's volumes, created while writes are blocked.

The head of the current branch is the newest commit among the snapshots of the present data. If there is none, the head
is the commit that the anchor records. So creating the snapshots of a commit also moves the head.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import DamagedError, LockNotGranted, PreflightError, UsageError, ZsnapdbError
from zsnapdb.base.patterns import printable
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import undone_on_error
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.snapshot_set_properties import snapshot_name
from zsnapdb.jobs.clone import clone_info, masking_requirement, reset_baseline, volumes
from zsnapdb.jobs.clone.catalogue import CloneVerb, Intention, verb
from zsnapdb.jobs.clone.clone_info import BRANCHES_PROPERTY, CloneInfo
from zsnapdb.jobs.clone.lifecycle import session
from zsnapdb.jobs.clone.reset_baseline import LogEnd
from zsnapdb.jobs.clone.sources import Commit, CommitRecord, commits
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.properties import CopyPhase
from zsnapdb.mysql.locks import GlobalReadLock, LockTimeouts, Watchdog, holding
from zsnapdb.planning.backup.lock_strategy import delays
from zsnapdb.planning.clone.branches import Branches, decode
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.server_copy.source_facts import ORIGIN_PROPERTY
from zsnapdb.zfs import datasets, destruction

_LOCK_SECONDS = 10.0
"""The time in seconds for which a commit waits for its lock.

If a statement has already run for longer than this, the lock is not requested.
"""
_DEADLINE_SECONDS = 30.0
"""The maximum time in seconds from the first statement of a commit's lock to its release.

This includes the creation of the snapshots.
"""
_PATIENCE_SECONDS = 60.0
"""The time in seconds during which a commit retries its lock, like the default of `lock.budget`."""
_MESSAGE_BYTES = 1000


@dataclass(frozen=True)
class Committed:
    """A new commit: a snapshot set of a clone. `clone create --from` accepts the value of `set.backup_id`."""

    info: CloneInfo
    set: SnapshotSet
    message: str


def message_text(message: str) -> str:
    """Return the message of a commit on one line.

    Raises:
        UsageError: the message is too long for a property.
    """
    text = printable(" ".join(message.split()))
    if len(text.encode()) > _MESSAGE_BYTES:
        raise UsageError(f"the message has more than {_MESSAGE_BYTES} bytes", hint="shorten the message")
    return text


def commit(settings: Settings, host: Host, name: str, message: str) -> CloneVerb[Intention, Committed]:
    """Snapshot all volumes of the clone at one moment. Its server may be running or stopped.

    The new snapshot set can be cloned like a backup. Writers of the clone wait during the snapshot (FLUSH TABLES WITH
    READ LOCK), so that the tables of all engines are consistent.

    Raises:
        PreflightError: the server of the clone was never started, so the files still have the identity of the source.
    """
    text = message_text(message)

    def decide(info: CloneInfo) -> tuple[Intention, Callable[[], Committed]]:
        if info.phase is not CopyPhase.READY:
            raise PreflightError(
                f"the server of clone {info.label} was never started ({info.phase})",
                hint=f"run `zsnapdb clone start {info.label}`",
                about=(info.owner,),
            )
        lock = ("block writes of its server (FLUSH TABLES WITH READ LOCK)",) if info.pid is not None else ()
        steps = (*lock, f"snapshot {', '.join(info.volumes.values())} at one moment")
        return Intention(info, steps), lambda: commit_locked(host, info, text)

    return verb(settings, host, name, decide)


def commit_locked(host: Host, info: CloneInfo, text: str) -> Committed:
    """Commit a clone whose server has been started before. The caller must hold the clone's lock."""
    commit_id = host.new_backup_id()
    new = CommitRecord(
        id=commit_id,
        instance=info.instance,
        message=text,
        created=stamp(host.latest()),
        origin=info.origin,
        owner=info.owner,
        parent=parent_of(info),
        log_end=None,
        run_id=host.run_id(),
        masked=info.masked or clone_info.NOT_MASKED,
        masked_by=masking_requirement.masked_by(info.volumes.values()) or None,
    )
    # The GTIDs that are no longer in the binlogs are recorded in a property of the volume.
    volume = next(iter(info.volumes.values()))
    origin = {ORIGIN_PROPERTY: datasets.properties(volume, [ORIGIN_PROPERTY])[ORIGIN_PROPERTY].value}
    short = snapshot_name(commit_id)
    names = [f"{dataset}@{short}" for dataset in info.volumes.values()]
    # If the lock was lost, the snapshot may be inconsistent and is destroyed.
    with undone_on_error(lambda: destruction.destroy_set(names, commit_id)), writes_paused(info):
        end = end_of_log(info)
        new = replace(new, log_end=str(end) if end is not None else None)
        facts = property_fields.property_values(new, *property_fields.declared(CommitRecord)) | origin
        made = volumes.snapshot(info.volumes, short, facts)
    return Committed(info, SnapshotSet(commit_id, made), text)


def end_of_log(info: CloneInfo) -> LogEnd | None:
    """Return the present end of the clone's binlog; None if the server is not running or the end is unknown."""
    if info.pid is not None:
        with contextlib.suppress(ZsnapdbError), session(info) as opened:
            return reset_baseline.running_binlog_end(opened)
    return None


@contextlib.contextmanager
def writes_paused(info: CloneInfo) -> Iterator[None]:
    """If the clone's server is running, prevent writes to it during the block.

    The lock has a deadline and a watchdog, like the lock of a backup. If a running statement blocks the lock, the lock
    is requested repeatedly for up to a minute.

    Raises:
        LockNotGranted: a statement blocked the lock for the whole minute.
        LockError: the lock was lost before the block ended.
    """
    give_up = time.monotonic() + _PATIENCE_SECONDS
    with contextlib.ExitStack() as stack:
        for pause in delays() if info.pid is not None else ():
            try:
                stack.enter_context(_write_lock(info))
                break
            except LockNotGranted as error:
                if time.monotonic() + pause > give_up:
                    end = f"end the statement on clone {info.label} (`KILL QUERY`) or wait until it ends"
                    raise LockNotGranted(error.message, hint=f"{end}; commit again") from error
                time.sleep(pause)
        yield


@contextlib.contextmanager
def _write_lock(info: CloneInfo) -> Iterator[None]:
    lock = GlobalReadLock(longest=_LOCK_SECONDS, kill="never")
    terms = LockTimeouts(_DEADLINE_SECONDS, _LOCK_SECONDS)
    with session(info) as owner, session(info) as second, holding(lock, owner, Watchdog(second), terms):
        yield


def newest_commit(info: CloneInfo, made: Sequence[Commit] | None = None) -> Commit | None:
    """Return the newest commit of the clone's present data; None if there is none.

    The commit from which the data was cloned is ignored, even if a takeover moved it to this clone. `made` contains the
    commits of the present data, oldest first. If `made` is None, this function reads the commits.
    """
    made = commits(info.current) if made is None else made
    last = made[-1] if made else None
    return last if last is not None and last.set.backup_id != info.backup_id else None


def read_branches(info: CloneInfo, made: Sequence[Commit] | None = None) -> Branches:
    """Return the present branches of the clone. For `made`, see `newest_commit`.

    Raises:
        DamagedError: the anchor's property with the branches is unreadable.
    """
    try:
        recorded = decode(info.branches) if info.branches else Branches()
    except ValueError as error:
        raise DamagedError(
            f"the property {BRANCHES_PROPERTY} of {info.top} cannot be read: {error}",
            hint="`zsnapdb clone show` lists the commits of the clone; `zfs inherit` of this property deletes its"
            " branches",
        ) from error
    last = newest_commit(info, made)
    return recorded.with_head(last.set.backup_id) if last is not None else recorded


def parent_of(info: CloneInfo) -> str:
    """Return the parent for a new commit.

    The parent is the newest commit of the branch, else the set from which the data was cloned.
    """
    with contextlib.suppress(DamagedError):
        return read_branches(info).head or info.backup_id
    return info.backup_id


def branches_to_keep(info: CloneInfo, made: Sequence[Commit] | None = None) -> str:
    """Return the branches that the anchor must record before the clone gets other data; "" if nothing changes.

    A reset changes the data but not the branches. A detach changes neither the data nor the branches. For `made`, see
    `newest_commit`.
    """
    with contextlib.suppress(DamagedError):
        known = read_branches(info, made)
        if info.branches or known.head:
            return known.encode()
    return ""
