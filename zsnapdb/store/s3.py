"""Stores in Amazon S3, and in other services with the S3 protocol."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from zsnapdb.base.deadline import within
from zsnapdb.base.errors import ChangedError, ConfigError, ExistsError, NotFound, RepositoryError
from zsnapdb.config.repository import ARCHIVE_CLASSES, RepositorySettings
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
    too_large,
)
from zsnapdb.store.s3_bucket import (
    BATCH,
    DELETE_HINT,
    MOST,
    PARTS,
    RETRIEVAL_HINT,
    ObjectRemoval,
    RangedReader,
    afterlife_of,
    extend_lock_of,
    hold_of,
    retrieval_of,
    start_retrieval,
)
from zsnapdb.store.s3_client import (
    CHECKSUM_REFUSED,
    CONDITION_FAILED,
    DENIED_HINT,
    MISSING,
    NOT_ALLOWED,
    REQUEST_SECONDS,
    BlockReader,
    RenewedCredentials,
    S3Options,
    client_core,
    credentials_of,
    credentials_of_session,
    credentials_source,
    error_code,
    request_limit,
    transfer_limit,
    use_credentials,
    watch_refusals,
    with_md5,
    without_expect,
    zsnapdb_error,
)

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, ListObjectsV2OutputTypeDef

_SMALL = 128 << 10
"""In storage classes for rare access, objects below this size in bytes cost more than in the standard class."""

_REMOVAL_SECONDS = 5.0
"""Average time limit in seconds for removing one object, if the provider does not support batch requests."""


def require_listing(page: ListObjectsV2OutputTypeDef) -> None:
    """Raise KeyError if the answer is not a listing.

    For example, a proxy's HTML page would otherwise look like an empty bucket.
    """
    if not {"IsTruncated", "KeyCount", "Name", "Contents"} & page.keys():
        raise KeyError("IsTruncated")


class S3Store:
    """Objects in a bucket. Each call makes one attempt; RetryingStore repeats calls."""

    def __init__(
        self,
        bucket: str,
        *,
        endpoint: str | None,
        region: str | None,
        credentials_file: Path | None,
        addressing: Literal["auto", "path", "virtual"],
        connections: int,
        options: S3Options | None = None,
    ) -> None:
        self.bucket = bucket
        self.endpoint = endpoint
        self._region = region
        self._file = credentials_file
        self._core, self._credentials = self._session()
        self._addressing = addressing
        self._connections = connections
        self._options = options or S3Options()
        self._checksums = self._options.checksum != "none"
        self._client = self._connect()
        self._reader = RangedReader(self._read)
        self._removal = ObjectRemoval(bucket, self.delete)

    def _session(self) -> tuple[Session, RenewedCredentials | None]:
        """Return a session and its signing credentials.

        The credentials are None if botocore found none, or renews them itself.
        """
        core = client_core()
        self._renewed_in = str(self._file) if self._file else credentials_source(core)
        first = credentials_of(self._file) if self._file else credentials_of_session(core)
        if first is None:
            return core, None
        own = RenewedCredentials(
            first, lambda: credentials_of(self._file) if self._file else credentials_of_session(client_core())
        )
        core = client_core()
        use_credentials(core, own)
        return core, own

    def _connect(self) -> S3Client:
        style: dict[str, Any] = {"addressing_style": self._addressing}
        if self._checksums:
            # The checksum is a signed header, so the signature need not cover the body too.
            style["payload_signing_enabled"] = False
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=max(self._connections * PARTS, MOST) + 2,
            s3=cast(Any, style),
            # This module computes the checksum itself.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            made = self._core.create_client("s3", endpoint_url=self.endpoint, region_name=self._region, config=config)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"s3://{self.bucket}: {error}", hint="check endpoint and region of the repository"
            ) from error
        client = cast("S3Client", made)
        client.meta.events.register_last("before-call.s3.PutObject", without_expect)
        for request in ("DeleteObjects", "PutObjectRetention"):
            client.meta.events.register_last(f"before-call.s3.{request}", with_md5)
        if self._credentials is not None:
            watch_refusals(client, self._credentials)
        return client

    @contextmanager
    def _requesting(
        self,
        doing: str,
        *,
        is_conditional: bool = False,
        denied_hint: str = DENIED_HINT,
        limit: AbstractContextManager[object] | None = None,
    ) -> Iterator[None]:
        where = f"s3://{self.bucket}" + (f" at {self.endpoint}" if self.endpoint else "")
        try:
            with limit or request_limit():
                yield
        except (ClientError, BotoCoreError, KeyError, ResponseParserError) as error:
            raise zsnapdb_error(
                error,
                f"{doing} in {where}",
                renewed_in=self._renewed_in,
                is_conditional=is_conditional,
                denied_hint=denied_hint,
            ) from error

    def check(self) -> None:
        """Check that the bucket can be listed, below the prefix of the repository."""
        prefix = self._options.prefix
        with self._requesting(f"listing {prefix}" if prefix else "listing"):
            require_listing(self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, MaxKeys=1))

    def put(self, key: str, body: Body, *, only_if_absent: bool = False, sha256: str | None = None) -> None:
        """Store the object, and lock it if locks are configured.

        With `only_if_absent`, the request is conditional (If-None-Match).
        """
        with self._requesting(f"writing {key}", is_conditional=only_if_absent):
            self._put(key, body, sha256, {**self._lock(), **({"IfNoneMatch": "*"} if only_if_absent else {})})

    def _lock(self) -> dict[str, object]:
        if self._options.lock_mode is None:
            return {}
        until = datetime.now(UTC) + timedelta(seconds=self._options.lock_period)
        return {"ObjectLockMode": self._options.lock_mode, "ObjectLockRetainUntilDate": until}

    def _put(self, key: str, body: Body, sha256: str | None, more: Mapping[str, object]) -> None:
        parameters: dict[str, Any] = {"Bucket": self.bucket, "Key": key, **more}
        if self._options.storage_class and len(body) >= _SMALL:
            parameters["StorageClass"] = self._options.storage_class
        if self._options.sse:
            parameters["ServerSideEncryption"] = self._options.sse
        if self._options.sse_key:
            parameters["SSEKMSKeyId"] = self._options.sse_key
        if not self._checksums:
            self._put_without_checksum(self._client, parameters, body)
            return
        digest = bytes.fromhex(sha256) if sha256 else hashlib.sha256(body).digest()
        try:
            checksum = base64.b64encode(digest).decode()
            self._client.put_object(**parameters, Body=self._data(body), ChecksumSHA256=checksum)
        except ClientError as error:
            if self._options.checksum != "auto" or error_code(error) not in CHECKSUM_REFUSED:
                raise
            self._without_checksums(parameters, body, error)

    def _without_checksums(self, parameters: dict[str, Any], body: Body, refused: ClientError) -> None:
        """Store the object without the checksum. If that succeeds, later objects are stored without it too.

        Some endpoints do not support the checksum. If the attempt without the checksum also fails, the first error is
        raised. If the second error is a failed condition or a missing object or bucket, it is raised instead.
        """
        self._checksums = False
        client = self._connect()
        try:
            self._put_without_checksum(client, parameters, body)
        except ClientError as error:
            self._checksums = True
            if error_code(error) in CONDITION_FAILED | MISSING:
                raise
            raise refused from error
        self._client = client

    def _put_without_checksum(self, client: S3Client, parameters: dict[str, Any], body: Body) -> None:
        if self._options.lock_mode is not None:
            # A request that locks the object needs a checksum or Content-MD5 (S3 API reference, PutObject).
            md5 = hashlib.md5(body, usedforsecurity=False).digest()
            parameters = {**parameters, "ContentMD5": base64.b64encode(md5).decode()}
        client.put_object(**parameters, Body=self._data(body))

    @staticmethod
    def _data(body: Body) -> Any:
        return BlockReader(body) if isinstance(body, memoryview) else body

    def get(self, key: str) -> bytes:
        body = self.read_version(key).body
        if len(body) > most_bytes(key):
            raise too_large(key, f"s3://{self.bucket}")
        return body

    def read_version(self, key: str) -> Version:
        """Return the object with its ETag."""
        with self._requesting(f"reading {key}", limit=transfer_limit(most_bytes(key))):
            answer = self._read(key)
            with contextlib.closing(answer["Body"]) as body:
                most = most_bytes(key)
                return Version(
                    body.read() if answer.get("ContentLength", most + 1) <= most else body.read(most + 1),
                    # A gateway that lost its own metadata answers without an ETag.
                    answer.get("ETag", ""),
                )

    def _read(self, key: str, more: Mapping[str, str] | None = None) -> GetObjectOutputTypeDef:
        """Return the provider's answer. Raises ClientError with NoSuchKey if the object does not exist.

        If an account may not list the whole bucket unconditionally, S3 answers AccessDenied for a missing object (API
        reference, GetObject, "Permissions"). The policies of zsnapdb allow listing the prefix, so a listing shows
        whether the object is missing.
        """
        try:
            return self._client.get_object(Bucket=self.bucket, Key=key, **cast(Any, more or {}))
        except ClientError as error:
            if error_code(error) in NOT_ALLOWED and self._is_missing(key):
                raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject") from error
            raise

    def _is_missing(self, key: str) -> bool:
        """Return whether a listing shows that the object does not exist.

        The result is False for an account that may not list the bucket.
        """
        try:
            page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=key, MaxKeys=1)
            require_listing(page)
        except (ClientError, BotoCoreError, KeyError):
            return False
        return all(item["Key"] != key for item in page.get("Contents", []))

    def read_into(self, key: str, target: memoryview) -> int:
        """Read the object. Several connections are used if the object is large and one connection is slow."""
        with self._requesting(f"reading {key}", limit=transfer_limit(len(target))):
            return self._reader.read_into(key, target)

    def replace(self, key: str, body: Body, *, tag: str) -> None:
        """Replace the object if its ETag is still `tag` (If-Match)."""
        if not tag:
            raise RepositoryError(
                f"replacing {key} in s3://{self.bucket}: the provider named no version (ETag) of the object",
                hint="check the log of the endpoint; it has lost the metadata of its objects",
            )
        try:
            with self._requesting(f"replacing {key}", is_conditional=True):
                self._put(key, body, None, {"IfMatch": tag})
        except (ExistsError, NotFound) as error:
            if isinstance(error.__cause__, ClientError) and error_code(error.__cause__) == "NoSuchBucket":
                raise
            raise ChangedError(
                f"object {key} in s3://{self.bucket} was changed meanwhile",
                hint="another run wrote the object; this run did not change it",
            ) from error

    def _pages(self, prefix: str, delimiter: str = "") -> Iterator[ListObjectsV2OutputTypeDef]:
        """Yield the pages of a listing.

        Raises UnreachableError if the names arrive below the minimum rate, because the listing might never end.
        """
        token, pace = "", ListingPace(f"listing {prefix} in s3://{self.bucket}")
        while True:
            with self._requesting(f"listing {prefix}"), pace.page():
                more = {"ContinuationToken": token} if token else {}
                page = self._client.list_objects_v2(
                    Bucket=self.bucket, Prefix=prefix, Delimiter=delimiter, **cast(Any, more)
                )
                require_listing(page)
                pace.add(len(page.get("Contents", [])) + len(page.get("CommonPrefixes", [])))
            yield page
            if not page.get("IsTruncated"):
                return
            with self._requesting(f"listing {prefix}"):
                token = pace.next_token(page["NextContinuationToken"])

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for page in self._pages(prefix):
            with self._requesting(f"listing {prefix}"):
                items = page.get("Contents", [])
                listed = [
                    StoredObject(
                        item["Key"],
                        item["Size"],
                        item.get("LastModified"),
                        item.get("ETag", ""),
                        kind if (kind := item.get("StorageClass", "")) in ARCHIVE_CLASSES else "",
                    )
                    for item in items
                ]
            yield from listed

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the common prefixes below the prefix, without listing the objects in them."""
        for page in self._pages(prefix, "/"):
            for item in page.get("CommonPrefixes", []):
                yield item["Prefix"][len(prefix) : -1]

    def delete(self, key: str) -> None:
        with self._requesting(f"removing {key}", denied_hint=DELETE_HINT):
            try:
                self._client.delete_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                # Google's storage returns an error for a missing object.
                if error_code(error) not in MISSING or not self._is_missing(key):
                    raise

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects, a thousand per request, or one by one if the provider refuses such requests."""
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            limit = within(REQUEST_SECONDS + len(batch) * _REMOVAL_SECONDS)
            with self._requesting(f"removing {len(batch)} objects, {batch[0]} first,", limit=limit):
                self._removal.remove(self._client, batch)

    def hold(self, key: str) -> ObjectHold | None:
        """Return the object's lock or legal hold.

        The result is None for an account without the permission to read the lock.
        """
        with self._requesting(f"looking at {key}"):
            return hold_of(self._client, self.bucket, key)

    def extend_lock(self, key: str, until: datetime) -> None:
        """Lock the object's newest version at least until `until`, in the configured mode."""
        if self._options.lock_mode is None:
            raise RepositoryError(
                f"locking {key} in s3://{self.bucket}: no lock is configured", hint="set object_lock of the repository"
            )
        with self._requesting(f"locking {key}"):
            extend_lock_of(self._client, self.bucket, key, self._options.lock_mode, until)

    def retrieval(self, key: str) -> Retrieval:
        with self._requesting(f"looking at {key}"):
            return retrieval_of(self._client, self.bucket, key)

    def retrieve(self, key: str, tier: str, days: int) -> None:
        with self._requesting(f"retrieving {key}", denied_hint=RETRIEVAL_HINT):
            start_retrieval(self._client, self.bucket, key, tier, days)

    def afterlife(self) -> DeletionPolicy:
        with request_limit():
            return afterlife_of(self._client, self.bucket, self._options.prefix)

    def give_up(self) -> None:
        """Do nothing, because no call of this store waits for another attempt."""


def open_at(settings: RepositorySettings) -> tuple[Store, str]:
    """Return the store and key prefix for s3://bucket[/prefix]. The prefix is "" or ends in a slash."""
    address, prefix = settings.address, settings.address.prefix
    lock, own = settings.object_lock, settings.s3
    store = S3Store(
        address.bucket,
        endpoint=own.endpoint,
        region=own.region,
        credentials_file=own.credentials_file,
        addressing=own.addressing,
        connections=settings.stream.concurrency,
        options=S3Options(
            own.storage_class,
            own.sse,
            own.sse_key,
            own.checksum,
            prefix,
            "GOVERNANCE" if lock is not None and lock.mode == "governance" else "COMPLIANCE" if lock else None,
            lock.period if lock is not None else 0.0,
        ),
    )
    return store, prefix
