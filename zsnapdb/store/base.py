"""The protocol of object stores, with the guarantees of every store."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from zsnapdb.base.errors import DamagedError, RepositoryError, UnreachableError


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing: its key, its size in bytes, and its modification time by the store's own clock.

    `modified` is None if the store does not report it. `tag` changes with every version of the object; "" if the
    store's listings have no tag. `archive_class` is the name of the object's archive class; "" if the object can be
    read at once. The class stays while a retrieved object can be read, see `Store.retrieval`.
    """

    key: str
    size: int
    modified: datetime | None = None
    tag: str = ""
    archive_class: str = ""


Body = bytes | bytearray | memoryview
"""The bytes of an object to store. A memoryview must be contiguous, with items of one byte."""


@dataclass(frozen=True)
class Version:
    """An object's bytes, with the tag that identifies exactly this version of the object."""

    body: bytes
    tag: str


@dataclass(frozen=True)
class ObjectHold:
    """Protection of a stored object until a time (UTC) or, if `until` is None, until a legal hold is lifted."""

    until: datetime | None


class Retrieval(StrEnum):
    """The state of an object in an archive class."""

    NONE = "not requested"
    RUNNING = "running"
    DONE = "done"
    """The object can be read, for some days."""


ARCHIVED_HINT = (
    "retrieve the chunks and binlogs of a restore with `zsnapdb retrieve INSTANCE --to POINT --wait 2d`, and any other"
    " object with `aws s3api restore-object --bucket BUCKET --key KEY --restore-request Days=7`, then run the command"
    " again"
)


def no_retrievals(where: str) -> RepositoryError:
    """Return the error for a retrieval in a store whose listings name no archive class."""
    return RepositoryError(
        f"{where}: zsnapdb retrieves archived objects only in S3 buckets",
        hint="run the restore; move blobs out of Azure's archive tier with `az storage blob set-tier`",
    )


@dataclass(frozen=True)
class DeletionPolicy:
    """How a store treats removed objects.

    - `keeps_versions`: whether removed objects stay as older versions (None: unknown)
    - `days`: the days until the store's rules remove older versions (None: the rules never do, or are unknown)
    - `has_locks`: whether objects can be locked. If objects cannot be locked, do not call `hold`
    - `archive_rules`: the names of the store's rules that move objects of the repository to an archive class
    - `removal_rules`: the names of the store's rules that remove objects of the repository
    """

    keeps_versions: bool | None
    days: int | None = None
    has_locks: bool = False
    archive_rules: tuple[str, ...] = ()
    removal_rules: tuple[str, ...] = ()


CONDITIONS_HINT = (
    "use an S3 server with conditional writes (If-None-Match and If-Match), or a folder; without them two writers could"
    " destroy each other's backups"
)
"""The hint for a store that ignores or refuses conditional writes."""

_DOCUMENT_BYTES = 128 << 20
_SHORT_BYTES = 1 << 20
_CHUNK_BYTES = (1 << 30) + (1 << 25)
_SHORT = re.compile(r".*\.lock|(?:.*/)?zsnapdb\.json|.*/(?:pins|unfinished)/[^/]*")


def most_bytes(key: str) -> int:
    """Return the largest size in bytes of an object that is read under this key.

    A manifest of 128 MiB describes about 700,000 chunks, which contain 22 TB at the usual chunk size. Leases, markers,
    pins and marks are short. The configured chunk size is at most 1 GiB. Without a size limit, an account with write
    access to the store could exhaust the memory of every host that reads objects.
    """
    if _SHORT.fullmatch(key):
        return _SHORT_BYTES
    return _DOCUMENT_BYTES if key.endswith(".json") else _CHUNK_BYTES


def too_large(key: str, where: str) -> DamagedError:
    """Return the error for an object that is larger than any object that zsnapdb writes under this kind of key."""
    return DamagedError(
        f"object {key} in {where} has more than {most_bytes(key)} bytes, and was not read",
        hint="zsnapdb writes no such object: somebody else replaced it",
    )


LISTING_SECONDS = 120.0
"""Time limit in seconds for the requests of a listing, in addition to the time allowed for the names."""
LEAST_NAMES = 50
"""Minimum number of names per second in a listing. Providers send a page of a thousand names in less than a second."""
MOST_NAMES = 100_000_000
MOST_TOKEN = 64 << 10


@dataclass
class ListingPace:
    """The elapsed time of one listing, and the number of names so far. `doing` describes the listing in errors."""

    doing: str
    seconds: float = 0.0
    names: int = 0
    tokens: set[int] = field(default_factory=set)

    @contextlib.contextmanager
    def page(self) -> Iterator[None]:
        """Measure how long the block takes to request a page.

        Raises UnreachableError if all pages so far together were too slow.
        """
        began = time.monotonic()
        yield
        self.seconds += time.monotonic() - began
        if self.seconds > LISTING_SECONDS + self.names / LEAST_NAMES:
            raise UnreachableError(
                f"{self.doing} is too slow and was stopped: {self.names} names in {self.seconds:.0f} s",
                hint="check the endpoint and the network; the next run continues",
            )

    def add(self, names: int) -> None:
        """Count the names of a page. Raises RepositoryError if the listing has more names than any real repository."""
        self.names += names
        if self.names > MOST_NAMES:
            raise RepositoryError(
                f"{self.doing}: more than {MOST_NAMES} names",
                hint="check the bucket and the prefix in the url of the repository",
            )

    def next_token(self, token: str) -> str:
        """Return the token of the next page.

        Raises RepositoryError if the token is repeated, because the listing would never end.
        """
        if hash(token) in self.tokens or len(token) > MOST_TOKEN:
            raise RepositoryError(
                f"{self.doing}: the provider repeats a page", hint="see the endpoint's log; is it an S3 server?"
            )
        self.tokens.add(hash(token))
        return token


class Store(Protocol):
    """A store of complete objects under keys with slashes.

    Every method raises RepositoryError if the store is unreachable.

    NotFound means that the object does not exist; an unreachable store never raises it. UnreachableError means that
    another attempt may succeed.
    """

    def check(self) -> None:
        """Check that the store can be reached and listed. Raises NotFound if the bucket or folder is missing."""

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        """Store the complete object durably. Raises ExistsError if the object exists and `only_if_absent` is true.

        `sha256` is the body's hash in hexadecimal, if the caller has it. With the hash, a store that verifies uploads
        need not compute it again.
        """

    def get(self, key: str) -> bytes:
        """Return the object.

        Raises NotFound if it does not exist, and DamagedError if it is larger than `most_bytes`.
        """

    def read_into(self, key: str, target: memoryview) -> int:
        """Copy the object into `target`, and return the object's full size in bytes.

        If the object is larger than `target`, only the beginning of the object is copied.

        Raises NotFound if the object does not exist. After an error, the content of `target` is undefined.
        """

    def read_version(self, key: str) -> Version:
        """Return the object with the tag of its version. Raises NotFound if the object does not exist.

        If the object is larger than `most_bytes`, only its start is read, because such a large object cannot be a valid
        document.
        """

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the object if the tag of its version is still `tag`.

        Raises ChangedError if the object has another version or does not exist. If several replacements of the same
        version run concurrently, only one succeeds. If the store's answer was lost, the replacement may have succeeded.
        The caller must then read the object again.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with the prefix, sorted by key."""

    def delete(self, key: str) -> None:
        """Remove the object. If the object is missing, no error is raised."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, many in one request if the store supports it.

        Raises RepositoryError if the store refuses to remove an object. In that case, some objects may already have
        been removed.
        """

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders directly below the prefix, sorted. The prefix ends in a slash.

        A folder is the next component of a key, up to a slash.
        """

    def hold(self, key: str) -> ObjectHold | None:
        """Return the lock or legal hold that protects the object from removal.

        The result is None if the object is unprotected or does not exist.
        """

    def extend_lock(self, key: str, until: datetime) -> None:
        """Lock the object at least until this time (UTC). A lock that ends later stays.

        Raises NotFound if the object does not exist, and RepositoryError if the store has no locks or no locks are
        configured.
        """

    def retrieval(self, key: str) -> Retrieval:
        """Return whether an object in an archive class can be read. Only for objects with an archive class."""

    def retrieve(self, key: str, tier: str, days: int) -> None:
        """Start the retrieval of an object in an archive class. Nothing happens if it is running or not needed.

        The retrieved object can be read for `days` days. `tier` is the name of a `RetrievalOption`.

        Raises RepositoryError if the store has no archive classes, or refuses the retrieval.
        """

    def afterlife(self) -> DeletionPolicy:
        """Return how the store treats removed objects."""

    def give_up(self) -> None:
        """Stop retrying. A call that waits for its next attempt raises an error instead.

        Later calls make only one attempt.
        """
