"""A store for benchmarks that has the documents of a repository, and of its chunks only their keys and sizes.

It counts its requests as an S3 server would: a listing is a request for each 1,000 keys or folders.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import threading
import weakref
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from zsnapdb.base.errors import ExistsError, NotFound
from zsnapdb.store.base import Body, DeletionPolicy, ObjectHold, Retrieval, StoredObject, Version, most_bytes, too_large

PAGE = 1000
"""Keys in one answer to a listing, as S3, Azure and Google have it."""
_INDEX = "index.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """A document, or `count` chunks of `size` bytes each whose keys are `key` and a number from 1."""

    key: str
    size: int
    tag: str
    modified: str
    count: int = 0

    @property
    def objects(self) -> Iterator[StoredObject]:
        """The objects that it stands for, in the order of their keys."""
        written = datetime.fromisoformat(self.modified)
        if not self.count:
            yield StoredObject(self.key, self.size, written, self.tag)
        for number in range(1, self.count + 1):
            yield StoredObject(f"{self.key}{number:08d}", self.size, written, self.tag)


@dataclass
class Writer:
    """Writes the folder of such a store."""

    folder: Path
    written: datetime
    entries: list[Entry] = field(default_factory=list)
    document_bytes: int = 0

    def add_document(self, key: str, body: bytes) -> None:
        path = self.folder / "documents" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        self.document_bytes += len(body)
        # The tag of a small object is its MD5 in S3.
        tag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        self.entries.append(Entry(key, len(body), tag, self.written.isoformat()))

    def add_chunks(self, prefix: str, count: int, size: int) -> None:
        self.entries.append(Entry(prefix, size, "0" * 32, self.written.isoformat(), count))

    @property
    def objects(self) -> int:
        return sum(entry.count or 1 for entry in self.entries)

    @property
    def stored_bytes(self) -> int:
        return sum(entry.size * (entry.count or 1) for entry in self.entries)

    def finish(self) -> None:
        """Write the index, in the order of the keys."""
        with (self.folder / _INDEX).open("w") as out:
            for entry in sorted(self.entries, key=lambda entry: entry.key):
                out.write(json.dumps(astuple(entry)) + "\n")


class MetadataStore:
    """The store in a folder that `Writer` wrote. `requests` counts them by kind, `received` the bytes of bodies."""

    def __init__(self, folder: Path) -> None:
        self.requests: Counter[str] = Counter()
        self.received = 0
        self._documents = folder / "documents"
        # A real store takes no memory of the command, so the index stays in its file. Mapped pages would count.
        self._index = os.open(folder / _INDEX, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._index)
        with (folder / _INDEX).open("rb") as lines:
            self._starts = array("Q", itertools.accumulate((len(line) for line in lines), initial=0))
        self._lock = threading.Lock()

    def _count(self, kind: str, number: int = 1, size: int = 0) -> None:
        with self._lock:
            self.requests[kind] += number
            self.received += size

    def check(self) -> None:
        self._count("LIST")

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        self._count("PUT")
        path = self._documents / key
        if only_if_absent and path.exists():
            raise ExistsError(f"{key} exists")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def get(self, key: str) -> bytes:
        path = self._documents / key
        try:
            size = path.stat().st_size
        except OSError as error:
            self._count("GET")
            raise NotFound(f"there is no {key}") from error
        if size > most_bytes(key):
            raise too_large(key, "the model")
        self._count("GET", size=size)
        return path.read_bytes()

    def read_into(self, key: str, target: memoryview) -> int:
        body = self.get(key)
        target[: len(body)] = body[: len(target)]
        return len(body)

    def read_version(self, key: str) -> Version:
        body = self.get(key)
        return Version(body, hashlib.md5(body, usedforsecurity=False).hexdigest())

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        self.put(key, body)

    def _entry(self, number: int) -> Entry:
        start, end = self._starts[number], self._starts[number + 1]
        return Entry(*json.loads(os.pread(self._index, end - start, start)))

    def _below(self, prefix: str) -> Iterator[Entry]:
        count = len(self._starts) - 1
        # The entry before may be a group whose keys begin with more than the key of the group.
        at = max(0, bisect_left(range(count), prefix, key=lambda number: self._entry(number).key) - 1)
        for entry in map(self._entry, range(at, count)):
            if entry.key.startswith(prefix) or (entry.count and prefix.startswith(entry.key)):
                yield entry
            elif entry.key > prefix:
                return

    def list(self, prefix: str) -> Iterator[StoredObject]:
        number = 0
        for number, listed in enumerate(
            (one for entry in self._below(prefix) for one in entry.objects if one.key.startswith(prefix)), 1
        ):
            if number % PAGE == 1:
                self._count("LIST")
            yield listed
        if not number:
            self._count("LIST")

    def folders(self, prefix: str) -> Iterator[str]:
        names: dict[str, None] = {}
        for entry in self._below(prefix):
            name, slash, _ = entry.key.removeprefix(prefix).partition("/")
            if slash:
                names[name] = None
        self._count("LIST", max(1, math.ceil(len(names) / PAGE)))
        yield from names

    def delete(self, key: str) -> None:
        self._count("DELETE")

    def delete_many(self, keys: Sequence[str]) -> None:
        self._count("DELETE", math.ceil(len(keys) / PAGE))

    def hold(self, key: str) -> ObjectHold | None:
        self._count("GET")
        return None

    def extend_lock(self, key: str, until: datetime) -> None:
        self._count("PUT")

    def retrieval(self, key: str) -> Retrieval:
        return Retrieval.DONE

    def retrieve(self, key: str, tier: str, days: int) -> None:
        """Do nothing: every object can be read."""

    def afterlife(self) -> DeletionPolicy:
        return DeletionPolicy(False)

    def give_up(self) -> None:
        """Do nothing: no request is repeated."""


def writer(folder: Path) -> Writer:
    """Return the writer of a new store in the folder. Everything in it was written an hour ago."""
    folder.mkdir(parents=True)
    return Writer(folder, datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1))
