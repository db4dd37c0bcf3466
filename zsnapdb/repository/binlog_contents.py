"""Reads the contents of a binlog archive: every described incarnation and binlog, rotated or active."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from zsnapdb.errors import ConsistencyError, DamagedError, NotThere
from zsnapdb.model import Flavour
from zsnapdb.repository import layout
from zsnapdb.repository.binlog_descriptions import ArchivedFile, Incarnation, Segment, covering, number_of
from zsnapdb.repository.layout import IncarnationKey, K, RotatedBinlogKey, SegmentKey
from zsnapdb.repository.repository import Repository

T = TypeVar("T")

_THREADS = 8
_READINGS = 5


@dataclass(frozen=True)
class Archive:
    """The contents of an instance's binlog archive: its incarnations, oldest first, and their files in order.

    `damaged` has an error for each description that cannot be read.
    """

    incarnations: tuple[Incarnation, ...]
    files: tuple[ArchivedFile, ...]
    damaged: tuple[DamagedError, ...] = ()

    def of(self, incarnation: str) -> tuple[ArchivedFile, ...]:
        """Return the files of one incarnation, in order."""
        return tuple(file for file in self.files if file.incarnation == incarnation)


def load(repository: Repository, instance: str) -> Archive:
    """Return the contents of the instance's archive.

    A damaged description does not hide the others. RepositoryError if the store cannot be reached.
    """
    keys = [listed.key for listed in repository.list(layout.incarnations(instance))]
    incarnations, damaged = _partition(_read_all(repository, keys, _incarnation))
    incarnations.sort(key=lambda incarnation: (incarnation.began, incarnation.id))
    files: list[ArchivedFile] = []
    for incarnation in incarnations:
        for _ in range(_READINGS):
            readable, wrong = _files(repository, instance, incarnation)
            if readable is not None:
                break
        else:
            raise ConsistencyError(
                f"the active binlogs of {instance} change faster than they can be read", hint="try again"
            )
        files += readable
        damaged += wrong
    return Archive(tuple(incarnations), tuple(files), tuple(damaged))


def _files(
    repository: Repository, instance: str, incarnation: Incarnation
) -> tuple[list[ArchivedFile] | None, list[DamagedError]]:
    """Return the files of an incarnation, or None for them if a listed segment is gone when it is read."""
    # Segments are listed before rotated files: a file that is rotated in between is in both lists, not in none.
    segments = list(repository.list(layout.segments(instance, incarnation.id)))
    keys = [listed.key for listed in repository.list(layout.rotated_binlogs(instance, incarnation.id))]
    files, damaged = _partition(_read_all(repository, keys, _rotated))
    rotated = {key.name for key in keys}
    spans: dict[str, list[tuple[int, int]]] = {}
    for listed in segments:
        if listed.key.name not in rotated:
            spans.setdefault(listed.key.name, []).append(listed.key.span)
    for name, known in spans.items():
        chosen = [layout.segment(instance, incarnation.id, name, *span) for span in covering(known)]
        read = _read_all(repository, chosen, _segment)
        if len(read) < len(chosen):
            return None, []
        readable, wrong = _partition(read)
        damaged += wrong
        file = active_file(instance, incarnation, name, readable) if not wrong else None
        if file is not None:
            files.append(file)
    return sorted(files, key=lambda file: number_of(file.name)), damaged


def _incarnation(body: bytes, key: IncarnationKey) -> Incarnation:
    incarnation = Incarnation.decode(body, key)
    _check_place(key, layout.incarnation(incarnation.instance, incarnation.id))
    return incarnation


def _rotated(body: bytes, key: RotatedBinlogKey) -> ArchivedFile:
    file = ArchivedFile.decode(body, key)
    _check_place(key, layout.rotated_binlog(file.instance, file.incarnation, file.name))
    return file


def _segment(body: bytes, key: SegmentKey) -> Segment:
    segment = Segment.decode(body, key)
    if (segment.name, segment.start, segment.end) != (key.name, *key.span):
        _check_place(key, f"{segment.name}, bytes {segment.start} to {segment.end}")
    return segment


def _check_place(key: str, described: str) -> None:
    """Raise DamagedError if a description lies under the key of another object."""
    if described != key:
        raise DamagedError(
            f"{key} describes {described}", hint="objects were renamed or copied by hand in the repository"
        )


def _read_all(repository: Repository, keys: Sequence[K], decode: Callable[[bytes, K], T]) -> list[T | DamagedError]:
    """Return the decoded objects in order, without those that were removed since they were listed."""

    def read(key: K) -> T | DamagedError | None:
        try:
            return decode(repository.keyring.verified(repository.get(key), key), key)
        except DamagedError as error:
            return error
        except NotThere:
            return None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="binlogs") as pool:
        return [item for item in pool.map(read, keys) if item is not None]


def _partition(read: Sequence[T | DamagedError]) -> tuple[list[T], list[DamagedError]]:
    return (
        [item for item in read if not isinstance(item, DamagedError)],
        [item for item in read if isinstance(item, DamagedError)],
    )


def active_file(instance: str, incarnation: Incarnation, name: str, segments: Sequence[Segment]) -> ArchivedFile | None:
    """Return the active binlog that consists of these segments, in order. None if its first segment is missing."""
    if not segments or segments[0].head is None or segments[0].start != 0:
        return None
    span = segments[0].span
    for segment in segments[1:]:
        span = span.then(segment.span, Flavour(incarnation.flavour))
    return ArchivedFile(
        instance=instance,
        incarnation=incarnation.id,
        name=name,
        flavour=incarnation.flavour,
        is_rotated=False,
        head=segments[0].head,
        span=span,
        size=segments[-1].end,
        sha256="",
        gap=segments[0].gap,
        segments=tuple(segments),
    )
