"""Protection of objects by a bucket: locks, versions, and the rules that remove older versions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from botocore.exceptions import BotoCoreError, ClientError

from zsnapdb.store.base import DeletionPolicy, ObjectHold
from zsnapdb.store.s3_client import error_code
from zsnapdb.store.s3_parts import MISSING, NOT_ALLOWED, UNKNOWN_REQUEST

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_NO_LOCKS = {"ObjectLockConfigurationNotFoundError", *UNKNOWN_REQUEST}


def hold_of(client: S3Client, bucket: str, key: str) -> ObjectHold | None:
    """Return the lock or legal hold of the object's newest version, from its headers. None if there is none."""
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


def extend_lock_of(
    client: S3Client, bucket: str, key: str, mode: Literal["GOVERNANCE", "COMPLIANCE"], until: datetime
) -> None:
    """Lock the object's newest version at least until then. ClientError if the provider refuses.

    A lock can always be extended. It is shortened only by a request to bypass it (S3 User Guide, "Object Lock"). So a
    refusal is not an error if the existing lock ends later.
    """
    try:
        client.put_object_retention(Bucket=bucket, Key=key, Retention={"Mode": mode, "RetainUntilDate": until})
    except ClientError as error:
        if error_code(error) not in NOT_ALLOWED:
            raise
        held = hold_of(client, bucket, key)
        if held is None or held.until is None or held.until < until.replace(microsecond=0):
            raise


def afterlife_of(client: S3Client, bucket: str) -> DeletionPolicy:
    """Return the bucket's versioning, its rule for older versions, and whether it has locks.

    Only lifecycle rules for the complete bucket count.
    """
    try:
        status = client.get_bucket_versioning(Bucket=bucket).get("Status")
    except (ClientError, BotoCoreError):
        # Many accounts may remove objects, but not read the versioning. Locks need versions, so unknown versioning
        # means that there may be locks.
        return DeletionPolicy(keeps_versions=None, has_locks=True)
    if status != "Enabled":
        return DeletionPolicy(keeps_versions=False)
    return DeletionPolicy(keeps_versions=True, days=_version_days(client, bucket), has_locks=_has_locks(client, bucket))


def _has_locks(client: S3Client, bucket: str) -> bool:
    try:
        client.get_object_lock_configuration(Bucket=bucket)
    except ClientError as error:
        return error_code(error) not in _NO_LOCKS
    except BotoCoreError:
        return True
    return True


def _version_days(client: S3Client, bucket: str) -> int | None:
    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    except (ClientError, BotoCoreError):
        return None
    days = [
        rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
        for rule in rules
        if rule["Status"] == "Enabled"
        and "NoncurrentDays" in rule.get("NoncurrentVersionExpiration", {})
        and not rule.get("Prefix")
        and not any(rule.get("Filter", {}).values())
    ]
    return min(days, default=None)
