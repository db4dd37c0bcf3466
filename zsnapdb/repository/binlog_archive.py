"""Reading and writing the binlog archive of one instance. `repository/binlogs.py` says what its objects are."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from zsnapdb.errors import ConsistencyError, DamagedError, ExistsError, NotThere
from zsnapdb.model import Flavour
from zsnapdb.repository import layout
from zsnapdb.repository.binlogs import (
    ArchivedFile,
    Incarnation,
    Segment,
    covering,
    is_archivable,
    number_of,
    parse_piece,
    piece_name,
)
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.repository.repository import Repository
from zsnapdb.store.base import StoredObject
from zsnapdb.stream.chunks import Body, Chunk, Codec, stream_hash, unseal
from zsnapdb.stream.crypto import ChunkCipher

T = TypeVar("T")

_THREADS = 8
_SHAPES = {
    "chunks": re.compile(r"[0-9a-f]+/\d{8}"),
    "segments": re.compile(r"\d{16}-\d{16}-[0-9a-f]+"),
    "growing": re.compile(r"\d{16}-\d{16}\.json"),
}
"""What follows a file's name in the keys that are ours."""
_READINGS = 5


@dataclass(frozen=True)
class Archive:
    """All that is archived of an instance: its incarnations, oldest first, and their files in order.

    `damaged`: descriptions that cannot be read.
    """

    incarnations: tuple[Incarnation, ...]
    files: tuple[ArchivedFile, ...]
    damaged: tuple[DamagedError, ...] = ()

    def of(self, incarnation: str) -> tuple[ArchivedFile, ...]:
        """Return the files of one incarnation, in order."""
        return tuple(file for file in self.files if file.incarnation == incarnation)


@dataclass(frozen=True)
class BinlogArchive:
    """The binlog archive of an instance in a repository.

    Descriptions are signed and verified, keys opened, by the repository's keyring.
    """

    repository: Repository
    instance: str

    def load(self) -> Archive:
        """Return what is archived. A damaged description does not hide the others; an unreachable store raises."""
        incarnations, damaged = self._incarnations()
        files: list[ArchivedFile] = []
        for incarnation in incarnations:
            for _ in range(_READINGS):
                found, wrong = self._files(incarnation)
                if found is not None:
                    break
            else:
                raise ConsistencyError(
                    f"the growing binlogs of {self.instance} change faster than they can be read", hint="try again"
                )
            files += found
            damaged += wrong
        return Archive(tuple(incarnations), tuple(files), tuple(damaged))

    def fetch(self, file: ArchivedFile, target: Path) -> None:
        """Write the file's archived bytes, to the end of its last complete transaction, to `target`, which must not exist; synced.

        Every chunk is proved by its hashes (and opened) before a byte of it is written. DamagedError names what is
        missing or altered; nothing is left at `target` then.
        """
        try:
            with target.open("xb") as out:
                for plain in self.plain(file):
                    out.write(plain)
                out.truncate(file.end)
                out.flush()
                os.fsync(out.fileno())
        except FileExistsError as error:
            raise ExistsError(f"{target} is already there", hint="name another file; nothing is overwritten") from error
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            raise

    def plain(self, file: ArchivedFile) -> Iterator[Body]:
        """Yield the plain bytes of the file's chunks or segments in order, each proved."""
        if file.is_sealed:
            if stream_hash(file.chunks) != file.sha256:
                name = f"binlog {file.name} of {self.instance}, incarnation {file.incarnation}"
                raise DamagedError(f"the description of {name} does not fit its own chunks", hint="it was altered")
            ciphers = self._ciphers(file.keys, file.name)
            for index, chunk in enumerate(file.chunks, 1):
                key = self.chunk_key(file.incarnation, file.name, file.attempt, index)
                yield self._open(
                    key,
                    chunk,
                    file.codec,
                    ciphers,
                    self.associated(file.incarnation, f"binlog/{file.name}", index, last=index == len(file.chunks)),
                )
            return
        known: dict[str, dict[str, ChunkCipher]] = {}
        for segment in file.segments:
            key = self.segment_key(file.incarnation, segment)
            wrapped = segment.key.wrapped if segment.key else ""
            ciphers = known[wrapped] = known.get(wrapped) or self._ciphers(
                (segment.key,) if segment.key else (), file.name
            )
            yield self._open(
                key,
                segment.chunk,
                segment.codec,
                ciphers,
                self.associated(file.incarnation, f"segment/{segment.name}", segment.start, last=False),
            )

    def begin(self, incarnation: Incarnation) -> None:
        """Make the incarnation exist. ExistsError if there is one of its id."""
        self._put(self.incarnation_key(incarnation.id), incarnation.encode())

    def add_segment(self, incarnation: str, segment: Segment, body: Body) -> None:
        """Store a piece of a growing file, durably: its body, then its description.

        ExistsError if another writer has described this piece.
        """
        self.repository.store.put(self.segment_key(incarnation, segment), body, only_if_absent=True)
        self._put(self.piece_key(incarnation, segment), segment.encode())

    def put_chunk(self, incarnation: str, name: str, attempt: str, index: int, body: Body) -> None:
        """Store a chunk of a file that is being sealed."""
        self.repository.store.put(self.chunk_key(incarnation, name, attempt, index), body)

    def get_chunk(self, incarnation: str, name: str, attempt: str, index: int) -> bytes:
        """Return a stored chunk."""
        return self.repository.store.get(self.chunk_key(incarnation, name, attempt, index))

    def commit(self, file: ArchivedFile) -> None:
        """Make the sealed file exist: described never over another, and read back the same.

        ConsistencyError if something else is there.
        """
        key = self.file_key(file)
        with contextlib.suppress(ExistsError):
            self._put(key, file.encode())
        if (
            ArchivedFile.decode(
                self.repository.keyring.verified(self.repository.store.get(self.repository.prefix + key), key), key
            )
            != file
        ):
            raise ConsistencyError(
                f"{key} was read back different from what was written",
                hint="does another host archive the same server?",
            )

    def get_segment(self, incarnation: str, segment: Segment) -> bytes:
        """Return the stored body of a piece."""
        return self.repository.store.get(self.segment_key(incarnation, segment))

    def remove_segments(self, incarnation: str, segments: Sequence[Segment]) -> None:
        """Remove pieces that a longer one has taken the place of, descriptions first."""
        top = f"{self.repository.prefix}{layout.binlogs(self.instance, incarnation)}growing/"
        for segment in segments:
            self.repository.store.delete(f"{top}{segment.name}/{piece_name(segment.start, segment.end)}.json")
        for segment in segments:
            self.repository.store.delete(self.segment_key(incarnation, segment))

    def remove_leftovers(self, file: ArchivedFile) -> int:
        """Remove what a sealed file no longer needs: its pieces, descriptions first, and chunks of other attempts.

        Return how many objects.
        """
        top = self.repository.prefix + layout.binlogs(self.instance, file.incarnation)
        wanted = f"{top}chunks/{file.name}/{file.attempt}/"
        removed = 0
        for folder in ("growing", "segments", "chunks"):
            for item in list(self.repository.store.list(f"{top}{folder}/{file.name}/")):
                if not item.key.startswith(wanted):
                    self.repository.store.delete(item.key)
                    removed += 1
        return removed

    def remove(self, file: ArchivedFile) -> int:
        """Remove a file from the archive; return how many objects that were.

        Ended at any moment, what is left is the whole file, or garbage below its name.

        Pieces of a sealed file, where a killed run left some, go before its description, or they would stand for the
        file again; of a growing one that with the first byte goes first.
        """
        removed = self._remove_pieces(file.incarnation, file.name)
        if file.is_sealed:
            self.repository.store.delete(self.repository.prefix + self.file_key(file))
        return removed + int(file.is_sealed) + self._remove_bodies(file.incarnation, file.name)

    def _remove_pieces(self, incarnation: str, name: str) -> int:
        keys = sorted(item.key for item in self.repository.store.list(f"{self._top(incarnation)}growing/{name}/"))
        for key in keys:
            self.repository.store.delete(key)
        return len(keys)

    def _remove_bodies(self, incarnation: str, name: str) -> int:
        keys = [
            item.key
            for folder in ("chunks", "segments")
            for item in self.repository.store.list(f"{self._top(incarnation)}{folder}/{name}/")
        ]
        self.repository.store.delete_many(keys)
        return len(keys)

    def _top(self, incarnation: str) -> str:
        return self.repository.prefix + layout.binlogs(self.instance, incarnation)

    def leftovers(self) -> dict[tuple[str, str], list[StoredObject]]:
        """Return what lies below names of no file, by incarnation and name: a killed run's, or one's that is under way.

        A file is there if it is described as sealed, readable or not, or if a piece with its first byte is. Only
        incarnations that are described are looked at.
        """
        prefix = self.repository.prefix + layout.binlog_incarnations(self.instance)
        known = [
            item.key.removeprefix(prefix).removesuffix(".json")
            for item in self.repository.store.list(prefix)
            if item.key.endswith(".json")
        ]
        return {
            (incarnation, name): objects
            for incarnation in known
            for name, objects in self._undescribed(incarnation).items()
        }

    def _undescribed(self, incarnation: str) -> dict[str, list[StoredObject]]:
        # Bodies are listed before descriptions: what is described in between is not taken for garbage.
        found: dict[str, list[StoredObject]] = {}
        for folder in ("chunks", "segments", "growing"):
            top, begun = f"{self._top(incarnation)}{folder}/", set()
            for item in self.repository.store.list(top):
                name, _, rest = item.key.removeprefix(top).partition("/")
                if not is_archivable(name) or not _SHAPES[folder].fullmatch(rest):
                    continue
                found.setdefault(name, []).append(item)
                place = parse_piece(rest) if folder == "growing" else None
                if place is not None and place[0] == 0:
                    begun.add(name)
        top = f"{self._top(incarnation)}files/"
        begun |= {item.key.removeprefix(top).removesuffix(".json") for item in self.repository.store.list(top)}
        return {name: objects for name, objects in found.items() if name not in begun}

    def sweep(self, incarnation: str, name: str, keys: Collection[str]) -> int:
        """Remove the objects that `leftovers` found below a name; return how many.

        None go if a file is there after all, or anything else has come to be there.

        An archiver that takes the file up again is seen by what it stores: its bodies have names of their own, and it
        never writes over a description.
        """
        now = {item.key for item in self._undescribed(incarnation).get(name, [])}
        if not now or not now <= set(keys):
            return 0
        # Asked for itself, as a listing may lag.
        with contextlib.suppress(NotThere):
            self.repository.store.get(f"{self._top(incarnation)}files/{name}.json")
            return 0
        self.repository.store.delete_many(sorted(now))
        return len(now)

    def confirm(self, incarnation: str, name: str, attempt: str, chunks: Sequence[Chunk]) -> None:
        """Prove that every chunk of a file that is about to be described is still there.

        DamagedError names the first that is not.
        """
        top = self.chunk_key(incarnation, name, attempt, 1).rpartition("/")[0] + "/"
        sizes = {item.key: item.size for item in self.repository.store.list(top)}
        for index, chunk in enumerate(chunks, 1):
            key = self.chunk_key(incarnation, name, attempt, index)
            if sizes.get(key) == chunk.stored_size:
                continue
            try:
                size = len(self.repository.store.get(key))
            except NotThere:
                size = -1
            if size != chunk.stored_size:
                raise DamagedError(
                    f"{key} is not there any more, or not whole",
                    hint="did a prune sweep it meanwhile? the next look archives the file again",
                )

    def incarnation_key(self, incarnation: str) -> str:
        """Return the key of an incarnation's description, without the repository's prefix."""
        return f"{layout.binlog_incarnations(self.instance)}{incarnation}.json"

    def file_key(self, file: ArchivedFile) -> str:
        """Return the key of a sealed file's description, without the repository's prefix."""
        return f"{layout.binlogs(self.instance, file.incarnation)}files/{file.name}.json"

    def piece_key(self, incarnation: str, segment: Segment) -> str:
        """Return the key of a piece's description, without the repository's prefix."""
        return f"{layout.binlogs(self.instance, incarnation)}growing/{segment.name}/{piece_name(segment.start, segment.end)}.json"

    def chunk_key(self, incarnation: str, name: str, attempt: str, index: int) -> str:
        """Return the key of a sealed file's chunk, in the store."""
        return (
            f"{self.repository.prefix}{layout.binlogs(self.instance, incarnation)}chunks/{name}/{attempt}/{index:08d}"
        )

    def segment_key(self, incarnation: str, segment: Segment) -> str:
        """Return the key of a piece's body, in the store."""
        top = f"{self.repository.prefix}{layout.binlogs(self.instance, incarnation)}"
        return f"{top}segments/{segment.name}/{piece_name(segment.start, segment.end)}-{segment.attempt}"

    def associated(self, incarnation: str, role: str, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to.

        `role` is `binlog/<file>` (index from 1) or `segment/<file>` (index: its first byte).
        """
        return "\n".join(
            ("zsnapdb/1", self.repository.id, self.instance, incarnation, role, str(index), str(int(last)))
        ).encode()

    def _put(self, key: str, body: bytes) -> None:
        self.repository.store.put(
            self.repository.prefix + key, self.repository.keyring.signed(body), only_if_absent=True
        )

    def _ciphers(self, keys: Sequence[KeyPart], name: str) -> dict[str, ChunkCipher]:
        opened = self.repository.keyring.open_keys(keys, f"binlog {name} of {self.instance}") if keys else {}
        return {key_id: ChunkCipher(key, key_id) for key_id, key in opened.items()}

    def _open(self, key: str, chunk: Chunk, codec: Codec, ciphers: dict[str, ChunkCipher], associated: bytes) -> Body:
        try:
            body = self.repository.store.get(key)
        except NotThere as error:
            raise DamagedError(
                f"{key} is missing", hint="the object was removed after it was written; the archive has a hole there"
            ) from error
        if chunk.key_id is not None and chunk.key_id not in ciphers:
            raise DamagedError(
                f"{key} names a key that its description does not have", hint="the description was altered"
            )
        return unseal(body, chunk, codec, ciphers[chunk.key_id] if chunk.key_id is not None else None, associated, key)

    def _incarnations(self) -> tuple[list[Incarnation], list[DamagedError]]:
        prefix = self.repository.prefix + layout.binlog_incarnations(self.instance)
        names = [item.key for item in self.repository.store.list(prefix) if item.key.endswith(".json")]
        found, damaged = _partition(self._read_all(names, lambda body, key: Incarnation.decode(body, key)))
        return sorted(found, key=lambda incarnation: (incarnation.began, incarnation.id)), damaged

    def _files(self, incarnation: Incarnation) -> tuple[list[ArchivedFile] | None, list[DamagedError]]:
        """Return the files of an incarnation.

        None for them if a file was sealed between listing its pieces and reading them.
        """
        top = self.repository.prefix + layout.binlogs(self.instance, incarnation.id)
        # Pieces are listed before sealed files: one that is sealed in between is in both lists, not in none.
        growing = list(self.repository.store.list(f"{top}growing/"))
        names = [item.key for item in self.repository.store.list(f"{top}files/") if item.key.endswith(".json")]
        found, damaged = _partition(self._read_all(names, lambda body, key: ArchivedFile.decode(body, key)))
        sealed = {key.rpartition("/")[2].removesuffix(".json") for key in names}
        pieces: dict[str, list[tuple[int, int]]] = {}
        for item in growing:
            name, _, piece = item.key.removeprefix(f"{top}growing/").partition("/")
            place = parse_piece(piece)
            if place is not None and name not in sealed:
                pieces.setdefault(name, []).append(place)
        for name, places in pieces.items():
            keys = [f"{top}growing/{name}/{piece_name(*place)}.json" for place in covering(places)]
            read = self._read_all(keys, lambda body, key: Segment.decode(body, key))
            if len(read) < len(keys):
                return None, []
            segments, wrong = _partition(read)
            damaged += wrong
            file = grown(self.instance, incarnation, name, segments) if not wrong else None
            if file is not None:
                found.append(file)
        return sorted(found, key=lambda file: number_of(file.name)), damaged

    def _read_all(self, keys: Sequence[str], decode: Callable[[bytes, str], T]) -> list[T | DamagedError]:
        """Return what the objects hold, in order; those that were removed since they were listed are left out."""

        def read(key: str) -> T | DamagedError | None:
            try:
                return decode(self.repository.keyring.verified(self.repository.store.get(key), key), key)
            except DamagedError as error:
                return error
            except NotThere:
                return None

        with ThreadPoolExecutor(_THREADS, thread_name_prefix="binlogs") as pool:
            return [item for item in pool.map(read, keys) if item is not None]


def _partition(found: Sequence[T | DamagedError]) -> tuple[list[T], list[DamagedError]]:
    return [item for item in found if not isinstance(item, DamagedError)], [
        item for item in found if isinstance(item, DamagedError)
    ]


def grown(instance: str, incarnation: Incarnation, name: str, segments: Sequence[Segment]) -> ArchivedFile | None:
    """Return the growing file that consists of these pieces, in order; None if its first one is not there."""
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
        is_sealed=False,
        head=segments[0].head,
        span=span,
        size=segments[-1].end,
        sha256="",
        gap=segments[0].gap,
        segments=tuple(segments),
    )
