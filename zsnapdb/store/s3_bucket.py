"""Functions for objects in a bucket: listing, removal, locks, and parallel reading of large objects."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, cast

from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError
from botocore.parsers import ResponseParserError

from zsnapdb.base.deadline import is_slow, rate_of
from zsnapdb.base.errors import RepositoryError, UnreachableError
from zsnapdb.config.repository import ARCHIVE_CLASSES
from zsnapdb.store.base import DeletionPolicy, ObjectHold, Retrieval
from zsnapdb.store.s3_client import (
    BUSY,
    MISSING,
    NOT_ALLOWED,
    UNKNOWN_REQUEST,
    error_code,
    http_status,
    request_limit,
    transfer_limit,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import TierType
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, LifecycleRuleOutputTypeDef, RestoreRequestTypeDef

BATCH = 1000
"""Maximum number of objects in one request."""
_MOST_REFUSED = 10
"""After this many refusals, the rest of a batch is not tried, because the account may lack the permission to remove
objects.
"""
DELETE_HINT = "check that the credentials may delete objects (`zsnapdb example iam-policy-prune.json`)"
RETRIEVAL_HINT = "allow the account to retrieve objects: add s3:RestoreObject to its policy"


@dataclass
class ObjectRemoval:
    """Removal of objects from one bucket.

    `one` removes a single object, and raises RepositoryError if the store refuses the removal.
    """

    bucket: str
    one: Callable[[str], None]
    in_batches: bool = True
    """Whether the provider accepts batch requests.

    It is False after the provider refused a batch request but removed a single object.
    """

    def remove(self, client: S3Client, keys: Sequence[str]) -> None:
        """Remove at most BATCH objects. Raises ClientError if the provider is busy.

        Raises RepositoryError for an object that cannot be removed. All other objects are removed, unless the store
        refuses many objects.
        """
        if not self.in_batches or len(keys) == 1:
            self._one_by_one(keys)
            return
        left, is_known = self._batch(client, keys)
        self._one_by_one(left)
        # An error of the provider (5xx) may be temporary: the next batch tries a batch request again.
        self.in_batches = is_known

    def _batch(self, client: S3Client, keys: Sequence[str]) -> tuple[list[str], bool]:
        """Remove the objects with a batch request.

        Return the objects that may still exist, and whether the provider supports batches.
        """
        try:
            with request_limit():
                answer = client.delete_objects(Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys]})
        except ClientError as error:
            status = http_status(error)
            if error_code(error) in BUSY or status == 429:
                raise
            return list(keys), status >= 500 and status != 501 and "NotImplemented" not in error_code(error)
        except ResponseParserError:
            return list(keys), False
        removed = {item.get("Key") for item in answer.get("Deleted", [])}
        removed |= {item.get("Key") for item in answer.get("Errors", []) if item.get("Code") in MISSING}
        left = [key for key in keys if key not in removed]
        return left, len(left) < len(keys) or bool(answer.get("Errors"))

    def _one_by_one(self, keys: Sequence[str]) -> None:
        refused: list[RepositoryError] = []
        for key in keys:
            try:
                self.one(key)
            except UnreachableError:
                raise
            except RepositoryError as error:
                refused.append(error)
                if len(refused) >= _MOST_REFUSED:
                    break
        if refused:
            raise refused[0]


_NO_LOCKS = {"ObjectLockConfigurationNotFoundError", *UNKNOWN_REQUEST}


def hold_of(client: S3Client, bucket: str, key: str) -> ObjectHold | None:
    """Return the lock or legal hold in the headers of the object's newest version; None if the object has neither."""
    try:
        head = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error_code(error) in MISSING:
            return None
        raise
    if head.get("ObjectLockLegalHoldStatus") == "ON":
        return ObjectHold(None)
    until = head.get("ObjectLockRetainUntilDate")
    return ObjectHold(until) if until is not None and until > datetime.now(UTC) else None


def retrieval_of(client: S3Client, bucket: str, key: str) -> Retrieval:
    """Return the state of an archived object from its header x-amz-restore (S3 API reference, HeadObject)."""
    restore = client.head_object(Bucket=bucket, Key=key).get("Restore", "")
    if 'ongoing-request="false"' in restore:
        return Retrieval.DONE
    return Retrieval.RUNNING if restore else Retrieval.NONE


def start_retrieval(client: S3Client, bucket: str, key: str, tier: str, days: int) -> None:
    """Start the retrieval of an archived object (S3 API reference, RestoreObject).

    Nothing happens if the retrieval is running, or if the object is no longer in an archive class.
    """
    request: RestoreRequestTypeDef = {"Days": days, "GlacierJobParameters": {"Tier": cast("TierType", tier)}}
    try:
        client.restore_object(Bucket=bucket, Key=key, RestoreRequest=request)
    except ClientError as error:
        if error_code(error) not in ("RestoreAlreadyInProgress", "InvalidObjectState"):
            raise


def extend_lock_of(
    client: S3Client, bucket: str, key: str, mode: Literal["GOVERNANCE", "COMPLIANCE"], until: datetime
) -> None:
    """Lock the object's newest version at least until `until`. Raises ClientError if the provider refuses the lock.

    A lock can always be extended, but only a request that bypasses it can shorten it (S3 User Guide, "Object Lock"). So
    a refusal is not an error if the existing lock ends later than `until`.
    """
    try:
        client.put_object_retention(Bucket=bucket, Key=key, Retention={"Mode": mode, "RetainUntilDate": until})
    except ClientError as error:
        if error_code(error) not in NOT_ALLOWED:
            raise
        held = hold_of(client, bucket, key)
        if held is None or held.until is None or held.until < until.replace(microsecond=0):
            raise


def afterlife_of(client: S3Client, bucket: str, prefix: str) -> DeletionPolicy:
    """Return whether the bucket keeps older versions, whether it has locks, and the effect of its lifecycle rules.

    Older versions are removed only by rules for the complete bucket. The archive rules and the removal rules are the
    rules for objects below the prefix, or a part of them.
    """
    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
    except (ClientError, BotoCoreError):
        rules = []
    archive = _rules_that(_archives, rules, prefix)
    removal = _rules_that(_removes, rules, prefix)
    try:
        status = client.get_bucket_versioning(Bucket=bucket).get("Status")
    except (ClientError, BotoCoreError):
        # Many accounts may remove objects, but not read the bucket's versioning setting. Locks need versioning, so if
        # this setting is unknown, objects may be locked.
        return DeletionPolicy(keeps_versions=None, has_locks=True, archive_rules=archive, removal_rules=removal)
    if status != "Enabled":
        return DeletionPolicy(keeps_versions=False, archive_rules=archive, removal_rules=removal)
    return DeletionPolicy(True, _version_days(rules), _has_locks(client, bucket), archive, removal)


def _has_locks(client: S3Client, bucket: str) -> bool:
    try:
        client.get_object_lock_configuration(Bucket=bucket)
    except ClientError as error:
        return error_code(error) not in _NO_LOCKS
    except BotoCoreError:
        return True
    return True


def _archives(rule: LifecycleRuleOutputTypeDef) -> bool:
    return any(one.get("StorageClass") in ARCHIVE_CLASSES for one in rule.get("Transitions", []))


def _removes(rule: LifecycleRuleOutputTypeDef) -> bool:
    """Return whether the rule removes current objects. ExpiredObjectDeleteMarker alone removes none."""
    return not {"Days", "Date"}.isdisjoint(rule.get("Expiration", {}))


def _rules_that(
    acts: Callable[[LifecycleRuleOutputTypeDef], bool], rules: Sequence[LifecycleRuleOutputTypeDef], prefix: str
) -> tuple[str, ...]:
    """Return the names of the enabled rules that act on objects below the prefix, or on a part of them."""
    names = []
    for rule in rules:
        chosen = rule.get("Filter", {})
        below = rule.get("Prefix") or chosen.get("Prefix") or chosen.get("And", {}).get("Prefix") or ""
        if acts(rule) and rule.get("Status") == "Enabled" and (below.startswith(prefix) or prefix.startswith(below)):
            names.append(rule.get("ID") or below)
    return tuple(names)


def _version_days(rules: Sequence[LifecycleRuleOutputTypeDef]) -> int | None:
    days = [
        rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
        for rule in rules
        if rule.get("Status") == "Enabled"
        and "NoncurrentDays" in rule.get("NoncurrentVersionExpiration", {})
        and not rule.get("Prefix")
        and not any(rule.get("Filter", {}).values())
    ]
    return min(days, default=None)


PARTS = 4
"""Maximum number of connections for one object."""
LEAST = 4 << 20
"""Minimum size of a part in bytes. A request for a smaller part costs more time than it saves."""
MOST = 32
"""Maximum number of connections for all objects together."""
_BLOCK = 1 << 20
_NOT_IN_PARTS = {"PreconditionFailed", "InvalidRange", "NotImplemented"}
_TOTAL = re.compile(r"bytes [0-9]+-[0-9]+/([0-9]+)")


class Pace:
    """The recent rate of one connection, in bytes per second. Threads share it."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._lock = threading.Lock()

    def note(self, size: int, seconds: float) -> None:
        """Record the size in bytes and the duration of one request. Short answers are ignored."""
        rate = rate_of(size, seconds)
        if rate is None:
            return
        with self._lock:
            self._rate = rate if not self._rate else 0.7 * self._rate + 0.3 * rate

    @property
    def is_fast(self) -> bool:
        """Return whether one connection was fast. The result is False if no request was recorded yet."""
        return self._rate > 0 and not is_slow(self._rate)


Get = Callable[[str, Mapping[str, str]], "GetObjectOutputTypeDef"]
"""A function that requests an object by key, with optional further parameters of GetObject.

It raises botocore's ClientError.
"""


@dataclass(frozen=True)
class RangedReader:
    """A reader of objects into memory. `get` requests the objects. Threads may share it."""

    get: Get
    pace: Pace = field(default_factory=Pace)
    _pools: list[ThreadPoolExecutor] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read_into(self, key: str, target: memoryview) -> int:
        """Copy the object into `target`, and return the object's full size in bytes.

        If the object is larger than `target`, only the beginning of the object is copied.

        After an error, threads no longer write to `target`. An object that is replaced during the read is read again.
        """
        if len(target) < 2 * LEAST or self.pace.is_fast:
            return self._whole(key, target)
        part = max(LEAST, -(-len(target) // PARTS))
        began = time.monotonic()
        try:
            answer = self.get(key, {"Range": f"bytes=0-{part - 1}"})
        except ClientError as error:
            if error_code(error) != "InvalidRange":
                raise
            return self._whole(key, target)
        total = _TOTAL.fullmatch(answer.get("ContentRange", ""))
        if total is None:
            # The server does not support ranges and sends the whole object.
            return self._received(answer, target, began)
        if self._in_parts(key, target[: min(int(total[1]), len(target))], part, answer, began):
            return int(total[1])
        return self._whole(key, target)

    def _in_parts(self, key: str, target: memoryview, part: int, first: GetObjectOutputTypeDef, began: float) -> bool:
        """Fill the target in parts. The first part comes from the answer `first`.

        After the return, no thread writes to the target.

        Return whether the server confirms that all parts belong to one version of the object. If not, the caller reads
        the object in one request.
        """
        running: list[Future[bool]] = []
        tag = first.get("ETag", "")
        try:
            for begin in range(part, len(target), part):
                one = self._pool().submit(self._part, key, target[begin : begin + part], begin, tag)
                running.append(one)
            self._exactly(first, target[:part], began)
        except BaseException:
            for one in running:
                one.cancel()
            raise
        finally:
            wait(running)
        return False not in {one.result() for one in running}

    def _whole(self, key: str, target: memoryview) -> int:
        began = time.monotonic()
        return self._received(self.get(key, {}), target, began)

    def _part(self, key: str, target: memoryview, begin: int, tag: str) -> bool:
        """Fill the target with this part. Return whether the server confirms that the object still has the tag."""
        # A proxy that changes an answer must mark the tag as weak (RFC 9110), and a weak tag never matches.
        same = {"IfMatch": tag} if tag and not tag.startswith("W/") else {}
        with transfer_limit(len(target)):
            began = time.monotonic()
            try:
                answer = self.get(key, {"Range": f"bytes={begin}-{begin + len(target) - 1}", **same})
            except ClientError as error:
                if error_code(error) in _NOT_IN_PARTS or http_status(error) in (412, 416, 501):
                    return False
                raise
            self._exactly(answer, target, began)
        return True

    def _exactly(self, answer: GetObjectOutputTypeDef, target: memoryview, began: float) -> None:
        """Fill the target from the answer.

        Raises IncompleteReadError unless the answer is exactly as long as the target.
        """
        size = self._received(answer, target, began)
        if size != len(target):
            raise IncompleteReadError(actual_bytes=size, expected_bytes=len(target))

    def _received(self, answer: GetObjectOutputTypeDef, target: memoryview, began: float) -> int:
        """Copy the answer into the target in blocks, and return the answer's full size in bytes.

        If the answer is larger than the target, only the beginning of the answer is copied.

        Blocks are used because reading a large object in one call would allocate new memory each time.
        """
        with closing(answer["Body"]) as body:
            done = 0
            # Only the last read detects a truncated answer.
            while block := body.read(_BLOCK):
                taken = min(len(block), max(0, len(target) - done))
                target[done : done + taken] = memoryview(block)[:taken]
                done += len(block)
                if done > len(target):
                    return max(done, answer.get("ContentLength", 0))
        self.pace.note(done, time.monotonic() - began)
        return done

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if not self._pools:
                self._pools.append(ThreadPoolExecutor(MOST - MOST // PARTS, thread_name_prefix="range"))
            return self._pools[0]
