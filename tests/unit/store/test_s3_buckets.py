"""What S3 alone can do or refuse: locks, versions, batches, and answers that depend on the account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from tests.unit.support.s3 import answer_with, bucket, s3, watch_clients
from zsnapdb.base.errors import NotFound, RepositoryError, UnreachableError
from zsnapdb.config.repository import ARCHIVE_CLASSES
from zsnapdb.store.base import DeletionPolicy, ObjectHold
from zsnapdb.store.s3_bucket import afterlife_of

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.literals import TransitionStorageClassType
    from mypy_boto3_s3.type_defs import LifecycleRuleAndOperatorTypeDef, LifecycleRuleTypeDef


@pytest.fixture
def locked_bucket() -> Iterator[S3Client]:
    with bucket(locked=True) as client:
        yield client


def test_a_locked_object_is_held_until_its_time_and_a_legal_hold_without_one(locked_bucket: S3Client) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    locked_bucket.put_object(
        Bucket="backups", Key="locked", Body=b"", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=until
    )
    locked_bucket.put_object(Bucket="backups", Key="held", Body=b"", ObjectLockLegalHoldStatus="ON")
    locked_bucket.put_object(Bucket="backups", Key="free", Body=b"")
    assert (s3().hold("locked"), s3().hold("held"), s3().hold("free")) == (ObjectHold(until), ObjectHold(None), None)


def test_a_lock_that_has_run_out_holds_nothing(locked_bucket: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)
    locked_bucket.put_object(
        Bucket="backups", Key="locked", Body=b"", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=until
    )
    monkeypatch.setattr(
        "zsnapdb.store.s3_bucket.datetime",
        Mock(now=lambda zone: until + timedelta(seconds=1), fromisoformat=datetime.fromisoformat),
    )
    assert s3().hold("locked") is None


def test_a_versioned_bucket_tells_how_long_removed_objects_stay(locked_bucket: S3Client) -> None:
    assert s3().afterlife() == DeletionPolicy(keeps_versions=True, days=None, has_locks=True)
    rule: LifecycleRuleTypeDef = {
        "ID": "old",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
    }
    locked_bucket.put_bucket_lifecycle_configuration(Bucket="backups", LifecycleConfiguration={"Rules": [rule]})
    assert s3().afterlife() == DeletionPolicy(keeps_versions=True, days=30, has_locks=True)


KINDS: tuple[TransitionStorageClassType, ...] = ("GLACIER", "DEEP_ARCHIVE", "GLACIER_IR")
RULES: dict[str, tuple[LifecycleRuleTypeDef, bool, bool]] = {
    **{
        kind: (
            {"Status": "Enabled", "Transitions": [{"Days": 30, "StorageClass": kind}]},
            kind in ARCHIVE_CLASSES,
            False,
        )
        for kind in KINDS
    },
    "days": ({"Status": "Enabled", "Expiration": {"Days": 30}}, False, True),
    "date": ({"Status": "Enabled", "Expiration": {"Date": datetime(2030, 1, 1, tzinfo=UTC)}}, False, True),
    "markers": ({"Status": "Enabled", "Expiration": {"ExpiredObjectDeleteMarker": True}}, False, False),
    "old versions": ({"Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, False, False),
    "uploads": ({"Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}, False, False),
}
"""Rules of a bucket, whether they archive objects, and whether they remove objects."""


@pytest.mark.parametrize("below", ["", "production/", "production/main/chunks/", "prod", "other/"])
@pytest.mark.parametrize("action", RULES)
@pytest.mark.parametrize("form", ["Prefix", "Filter", "And"])
@pytest.mark.parametrize("status", ["Enabled", "Disabled"])
def test_rules_that_archive_or_remove_objects_are_named(
    locked_bucket: S3Client, below: str, action: str, form: str, status: Literal["Enabled", "Disabled"]
) -> None:
    like, archives, removes = RULES[action]
    rule: LifecycleRuleTypeDef = {**like, "ID": "cold", "Status": status}
    if form == "Prefix":
        rule["Prefix"] = below
    else:
        both: LifecycleRuleAndOperatorTypeDef = {"Prefix": below, "Tags": [{"Key": "a", "Value": "b"}]}
        rule["Filter"] = {"Prefix": below} if form == "Filter" else {"And": both}
    locked_bucket.put_bucket_lifecycle_configuration(Bucket="backups", LifecycleConfiguration={"Rules": [rule]})
    is_named = status == "Enabled" and below != "other/"
    policy = afterlife_of(locked_bucket, "backups", "production/")
    assert policy.archive_rules == (("cold",) if is_named and archives else ())
    assert policy.removal_rules == (("cold",) if is_named and removes else ())


@pytest.mark.parametrize("code", ["RestoreAlreadyInProgress", "InvalidObjectState", "AccessDenied", "SlowDown"])
def test_retrieval_that_is_running_or_not_needed_is_no_error(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = ClientError({"Error": {"Code": code}}, "RestoreObject")
    answer_with(monkeypatch, "restore_object", Mock(side_effect=refusal))
    errors = {"AccessDenied": RepositoryError, "SlowDown": UnreachableError}
    if code not in errors:
        s3().retrieve("main/chunks/a", "Bulk", 7)
        return
    with pytest.raises(errors[code]) as refused:
        s3().retrieve("main/chunks/a", "Bulk", 7)
    assert "retrieving main/chunks/a" in refused.value.message
    assert ("s3:RestoreObject" in (refused.value.hint or "")) is (code == "AccessDenied")


def test_a_refused_removal_is_an_error_that_names_the_object(
    locked_bucket: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "no"}]}

    def denied(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "DeleteObject")

    def refuse(client: S3Client) -> None:
        monkeypatch.setattr(client, "delete_objects", lambda **_: refused)
        monkeypatch.setattr(client, "delete_object", denied)

    watch_clients(monkeypatch, refuse)
    store = s3()
    with pytest.raises(RepositoryError, match=r"removing a in .* no \(AccessDenied\)"):
        store.delete_many(["a", "b"])


def test_a_provider_without_batches_is_asked_one_by_one(
    locked_bucket: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there(**_: object) -> None:
        raise ClientError({"Error": {"Code": "NotImplemented"}}, "DeleteObjects")

    answer_with(monkeypatch, "delete_objects", not_there)
    store = s3()
    for key in ("a", "b", "c"):
        store.put(key, b"")
    store.delete_many(["a", "b"])
    assert [o.key for o in store.list("")] == ["c"]


def test_a_missing_object_is_missing_although_the_provider_denies_to_read_it(
    locked_bucket: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 answers 403 for a missing object to an account whose right to list has a condition."""

    def denied(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")

    answer_with(monkeypatch, "get_object", denied)
    store = s3()
    store.put("secret", b"")
    for read in (store.get, lambda key: store.read_into(key, memoryview(bytearray(1)))):
        with pytest.raises(NotFound):
            read("none")
        with pytest.raises(RepositoryError, match="AccessDenied"):
            read("secret")
