"""Stores in Azure Blob Storage and Google Cloud Storage, through the library obstore."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import obstore

from zsnapdb.base.errors import (
    ChangedError,
    ExistsError,
    NotFound,
    RepositoryError,
    UnreachableError,
    ZsnapdbError,
)
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.store.base import (
    Body,
    DeletionPolicy,
    ListingPace,
    ObjectHold,
    Retrieval,
    Store,
    StoredObject,
    Version,
    most_bytes,
    no_retrievals,
    too_large,
)
from zsnapdb.store.cloud_clients import (
    FAILURES,
    LEAST_RATE,
    REQUEST_SECONDS,
    CloudClient,
    CloudFailure,
    connect,
    finish,
    zsnapdb_error,
)

T = TypeVar("T")

_BLOCK = 1 << 20
"""The number of bytes per read of an answer. The time for each read is limited, according to LEAST_RATE."""
_PAGE = 1000
"""Maximum number of names in one page of a listing."""
_FOLDER_SECONDS = 600.0
"""Time limit for the listing of one folder without its subfolders."""
_BATCH = 256
"""Maximum number of objects in one request to Azure."""
_REMOVAL_SECONDS = 5.0
"""Average time limit in seconds for removing one object of a batch."""


class CloudStore:
    """Objects in a container or bucket. Each call makes one attempt; RetryingStore repeats calls.

    An object of any size is written in one request. `prefix` limits the keys that this account may list.
    """

    def __init__(self, client: CloudClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix

    @property
    def where(self) -> str:
        return self._client.where

    def _ask(
        self,
        doing: str,
        request: Callable[[Any], Awaitable[T]],
        seconds: float | None = REQUEST_SECONDS,
        *,
        is_conditional: bool = False,
        is_repeated: bool = False,
    ) -> T:
        """Return the answer to a request.

        If the provider refused the credentials and newer credentials or a new token were found, the request is repeated
        once.
        """
        used = self._client.raw
        try:
            return finish(lambda: request(used), seconds)
        except FAILURES as error:
            failure = CloudFailure.parse(error)
            if is_repeated or not (failure.is_denied and self._client.renew(used, is_expired=failure.is_expired)):
                # The library's own text can contain the provider's whole answer, so the text is not shown as the cause.
                at = f" at {self._client.endpoint}" if self._client.endpoint else ""
                failed = f"{doing} in {self.where}{at}"
                raise zsnapdb_error(
                    error, failed, self.where, credentials=self._client.credentials, is_condition=is_conditional
                ) from None
        return self._ask(doing, request, seconds, is_conditional=is_conditional, is_repeated=True)

    def check(self) -> None:
        """Check that the container or bucket can be listed below the repository's prefix."""
        for _ in self._pages(self._prefix, 1):
            return

    def put(
        self,
        key: str,
        body: Body,
        *,
        only_if_absent: bool = False,
        sha256: str | None = None,  # noqa: ARG002 - the library sends no checksum
    ) -> None:
        """Store the object. With `only_if_absent`, the request is conditional. The library sends no checksum."""
        self._put(f"writing {key}", key, body, "create" if only_if_absent else "overwrite")

    def _put(self, doing: str, key: str, body: Body, mode: str | dict[str, str]) -> None:
        self._ask(
            doing,
            lambda client: obstore.put_async(client, key, body, mode=mode, use_multipart=False),
            REQUEST_SECONDS + len(body) / LEAST_RATE,
            is_conditional=mode != "overwrite",
        )

    def get(self, key: str) -> bytes:
        body = self.read_version(key).body
        if len(body) > most_bytes(key):
            raise too_large(key, self.where)
        return body

    def read_version(self, key: str) -> Version:
        """Return the object with its ETag (Azure), or with its generation as a hexadecimal number (Google)."""
        most, body = most_bytes(key), bytearray()

        def take(block: memoryview) -> bool:
            body.extend(block[: most + 1 - len(body)])
            return len(body) <= most

        meta = self._ask(f"reading {key}", lambda client: _read(client, key, take), None)
        return Version(bytes(body), self._tag(meta))

    def _tag(self, meta: dict[str, Any]) -> str:
        if not self._client.has_generations:
            return meta["e_tag"] or ""
        generation = meta["version"] or ""
        return f"{int(generation):x}" if generation.isdecimal() else ""

    def read_into(self, key: str, target: memoryview) -> int:
        done = 0

        def take(block: memoryview) -> bool:
            nonlocal done
            taken = min(len(block), len(target) - done)
            target[done : done + taken] = block[:taken]
            done += len(block)
            return done <= len(target)

        def attempt(client: Any) -> Awaitable[dict[str, Any]]:
            nonlocal done
            done = 0
            return _read(client, key, take)

        meta = self._ask(f"reading {key}", attempt, None)
        return done if done <= len(target) else max(done, int(meta["size"]))

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the object if its ETag or its generation is still `tag`."""
        if not tag:
            raise RepositoryError(
                f"replacing {key} in {self.where}: the provider named no version of the object",
                hint="check the log of the endpoint; it has lost the metadata of its objects",
            )
        mode = {"version": str(int(tag, 16))} if self._client.has_generations else {"e_tag": tag}
        try:
            self._put(f"replacing {key}", key, body, mode)
        except (ExistsError, NotFound) as error:
            if _is_of_bucket(error):
                raise
            raise ChangedError(
                f"object {key} in {self.where} was changed meanwhile",
                hint="another run wrote the object; this run did not change it",
            ) from error

    def _pages(self, prefix: str, names: int) -> Iterator[Sequence[dict[str, Any]]]:
        """Yield the pages of a folder's listing, each with at most `names` names."""
        pace, listing = ListingPace(f"listing {prefix} in {self.where}"), _Listing(prefix, names, self.where)
        step = listing.following
        while True:
            with pace.page():
                page = self._ask(f"listing {prefix}", step)
                pace.add(len(page))
            if not page:
                return
            yield page

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys start with the prefix.

        The library can list only folders. If the prefix ends inside a name, the parent folder is listed.
        """
        if prefix and not prefix.endswith("/"):
            yield from self._list_part(prefix)
            return
        for page in self._pages(prefix, _PAGE):
            yield from map(_listed, page)

    def _list_part(self, prefix: str) -> Iterator[StoredObject]:
        found = self._folder(prefix.rpartition("/")[0])
        objects = {item["path"]: item for item in found["objects"]}
        for name in sorted([*objects, *(f"{folder}/" for folder in found["common_prefixes"])]):
            if not name.startswith(prefix):
                continue
            if name in objects:
                yield _listed(objects[name])
            else:
                yield from self.list(name)

    def _folder(self, path: str) -> dict[str, Any]:
        return self._ask(
            f"listing {path}", lambda client: obstore.list_with_delimiter_async(client, path or None), _FOLDER_SECONDS
        )

    def folders(self, prefix: str) -> Iterator[str]:
        yield from sorted(path.rpartition("/")[2] for path in self._folder(prefix)["common_prefixes"])

    def delete(self, key: str) -> None:
        try:
            self._ask(f"removing {key}", lambda client: obstore.delete_async(client, key))
        except NotFound as error:
            if _is_of_bucket(error):
                raise

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, many per request at Azure.

        If Azure's answer reports a missing object, the objects are removed one by one.
        """
        for start in range(0, len(keys), _BATCH):
            self._delete_batch([*keys[start : start + _BATCH]])

    def _delete_batch(self, batch: Sequence[str]) -> None:
        limit = REQUEST_SECONDS + len(batch) * _REMOVAL_SECONDS
        doing = f"removing {len(batch)} objects, {batch[0]} first,"
        try:
            self._ask(doing, lambda client: obstore.delete_async(client, batch), limit)
        except NotFound as error:
            if _is_of_bucket(error):
                raise
            for key in batch:
                self.delete(key)

    def hold(self, key: str) -> ObjectHold | None:  # noqa: ARG002 - as in the protocol
        """Return None (unknown), because the library does not show the provider's policies."""
        return None

    def extend_lock(self, key: str, until: datetime) -> None:  # noqa: ARG002 - as in the protocol
        raise RepositoryError(
            f"locking {key} in {self.where}: zsnapdb sets no locks there", hint="use an s3:// url with object_lock"
        )

    def retrieval(self, key: str) -> Retrieval:  # noqa: ARG002 - as in the protocol
        """Return that the object can be read, because the listings of this store name no archive class."""
        return Retrieval.DONE

    def retrieve(self, key: str, tier: str, days: int) -> None:  # noqa: ARG002 - as in the protocol
        raise no_retrievals(self.where)

    def afterlife(self) -> DeletionPolicy:
        """Return an unknown policy, because the library does not show versioning and soft delete."""
        return DeletionPolicy(keeps_versions=None)

    def give_up(self) -> None:
        """Do nothing, because no call of this store waits for another attempt."""


@dataclass
class _Listing:
    """The pages of one folder's listing. `where` is the store's address, which messages show.

    After a refused request, the library's stream ends as if the listing were complete. So the stream is never read
    again.
    """

    prefix: str
    names: int
    where: str
    _client: Any = None
    _stream: Any = None
    _is_begun: bool = False

    async def following(self, client: Any) -> Sequence[dict[str, Any]]:
        """Return the next page; empty at the end.

        Raises UnreachableError if the client was renewed between two pages, because the listing must then start from
        the beginning.
        """
        if self._client is not client:
            if self._is_begun:
                raise UnreachableError(
                    f"listing {self.prefix} in {self.where}: the credentials were renewed meanwhile",
                    hint="run the command again",
                )
            self._client, self._stream = client, obstore.list(client, self.prefix or None, chunk_size=self.names)
        page = await _next(self._stream) or ()
        self._is_begun = True
        return page


async def _read(client: Any, key: str, take: Callable[[memoryview], bool]) -> dict[str, Any]:
    """Pass the blocks of the object to `take`, until it returns False. Return the object's metadata."""
    answer = await asyncio.wait_for(obstore.get_async(client, key), REQUEST_SECONDS)
    stream = answer.stream(min_chunk_size=_BLOCK)
    while (block := await asyncio.wait_for(_next(stream), _BLOCK / LEAST_RATE)) is not None:
        if not take(memoryview(block)):
            break
    meta: dict[str, Any] = answer.meta
    return meta


async def _next(stream: Any) -> Any:
    """Return the next item of a stream of the library; None at its end.

    The built-in `anext` cannot handle the stream's items.
    """
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


def _listed(item: dict[str, Any]) -> StoredObject:
    return StoredObject(item["path"], item["size"], item["last_modified"], item["e_tag"] or "")


def _is_of_bucket(error: ZsnapdbError) -> bool:
    """Return whether the error reports a missing container or bucket instead of a missing object.

    Only the error about a missing bucket has a hint.
    """
    return isinstance(error, NotFound) and bool(error.hint)


def open_at(settings: RepositorySettings) -> tuple[Store, str]:
    """Return the store and key prefix of the address. The prefix is "" or ends in a slash."""
    prefix = settings.address.prefix
    return CloudStore(connect(settings), prefix), prefix
