"""Goes on with an interrupted receive of a volume, if what ZFS kept of it and the stored stream allow that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from zsnapdb.base.errors import CommandError, DamagedError, ZsnapdbError
from zsnapdb.base.quantities import size
from zsnapdb.jobs.base.events import Events
from zsnapdb.planning.restore.steps import Receive, why_from_the_beginning
from zsnapdb.repository.manifest import Manifest, VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.download import Resumption, resume_at
from zsnapdb.stream.resuming import NotResumableError, ResumePoint, parse_token
from zsnapdb.zfs import datasets, owned, streams
from zsnapdb.zfs.command import PoolFullError, StreamRefusedError
from zsnapdb.zfs.owned import Mark


class _Work(Protocol):
    @property
    def repository(self) -> Repository: ...
    @property
    def events(self) -> Events: ...


@dataclass(frozen=True)
class InterruptedReceive:
    """What ZFS kept of an interrupted receive, and the rest of the stream that it needs."""

    token: str
    resumption: Resumption


def rest_of(
    work: _Work, step: Receive, manifest: Manifest, volume: VolumePart, mark: Mark
) -> InterruptedReceive | None:
    """Return the rest of a volume whose receive was interrupted; None if it is to be received from its beginning.

    What ZFS kept and cannot be used is removed, and that is told. NotOursError, and nothing changes, if the dataset is
    not of this restore.
    """
    token = streams.token(step.dataset)
    if token is None:
        return None
    owned.prove([step.dataset], mark)
    try:
        point = parse_token(token)
    except DamagedError as error:
        begin_again(work, step, mark, error.message)
        return None
    why = why_from_the_beginning(
        step, to_guid=point.to_guid, from_guid=point.from_guid, records=point.received > 0 and point.object > 0
    )
    if why is not None:
        begin_again(work, step, mark, why)
        return None
    try:
        resumption = _resumption(work, manifest, volume, point)
    except NotResumableError as error:
        begin_again(work, step, mark, error.message)
        return None
    work.events.tell(
        f"the {step.role} volume of {step.backup_id} goes on at {size(resumption.before)} of {size(step.plain_bytes)}:"
        " ZFS kept what was received before"
    )
    return InterruptedReceive(token, resumption)


def _resumption(work: _Work, manifest: Manifest, volume: VolumePart, point: ResumePoint) -> Resumption:
    stored = work.repository.chunks_of(manifest, volume.role)
    return resume_at(
        stored,
        volume.chunks,
        volume.codec,
        point,
        name=lambda index: f"chunk {stored.key(index)}",
        ciphers=work.repository.ciphers(manifest),
        expected=expected_stream(volume, volume.features),
    )


def begin_again(work: _Work, step: Receive, mark: Mark, why: str) -> None:
    """Remove what ZFS kept of an interrupted receive, and tell why."""
    work.events.warn(f"the {step.role} volume of {step.backup_id} is received again from its beginning: {why}")
    # If ZFS refuses to go on, it may have removed what it kept.
    if _kept(step) is not None:
        owned.drop_partial(step.dataset, mark)


@contextlib.contextmanager
def given_back_if_full(work: _Work, step: Receive, mark: Mark) -> Iterator[None]:
    """Run the block, which receives the volume. If the pool is full, remove what ZFS kept of it, and tell that.

    A server in the same pool cannot write while the pool is full. Nothing that can be fetched again may hold it up.
    """
    try:
        yield
    except PoolFullError as error:
        try:
            if _kept(step) is not None:
                owned.drop_partial(step.dataset, mark)
                work.events.warn(
                    f"the pool is full, so what was received of the {step.role} volume of {step.backup_id} was removed"
                )
        except ZsnapdbError as second:
            error.add_note(f"removing the part of {step.dataset} that was received failed: {second}")
        raise


def is_refused(error: CommandError, step: Receive, interrupted: InterruptedReceive) -> bool:
    """Whether ZFS did not go on by a single record, because it does not take the rest for what it needs.

    Another error, such as a full pool, is none of the rest's.
    """
    return isinstance(error, StreamRefusedError) and _kept(step) in (interrupted.token, None)


def _kept(step: Receive) -> str | None:
    return streams.token(step.dataset) if datasets.exists(step.dataset) else None
