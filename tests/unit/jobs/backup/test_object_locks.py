"""A bucket with object lock, on a real S3 server: what was stored cannot be destroyed, and a chain stays locked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.support.s3_server import BUCKET, PREFIX, S3Server, s3_server, statements
from tests.unit.support.world import World, made
from zsnapdb.config.repository import ObjectLockSettings, RepositorySettings
from zsnapdb.jobs.backup import run as backup
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import object_locks
from zsnapdb.jobs.repository import verify
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.layers import open_store

LOCK = {"mode": "governance", "for": "30d"}
STOLEN = "writer"
"""The user of the backed-up host, whose credentials are stolen."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        server.add_user(STOLEN)
        server.allow(statements("iam-policy-write-only.json", user=STOLEN))
        yield server


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with made(tmp_path_factory.mktemp("world")) as world:
        world.time, world.recipients = datetime.now(UTC), ()
        yield world


@pytest.fixture(scope="module")
def chain(s3: S3Server, world: World) -> tuple[str, ...]:
    """A full backup and two increments."""
    return tuple(backup.backup(instance(s3, world), opener=world.open_source).manifest.backup_id for _ in range(3))


def instance(s3: S3Server, world: World, user: str | None = STOLEN) -> Instance:
    """Return the instance as a user sees it, or the owner of the bucket."""
    settings = s3.settings(user, object_lock=LOCK)
    host = replace(world.instance.host, open_store=lambda _, tell: open_store(settings, tell))
    return replace(world.instance, host=host, repository=replace_lock(world.instance, settings.object_lock))


def replace_lock(known: Instance, lock: ObjectLockSettings | None) -> RepositorySettings:
    return known.repository.model_copy(update={"object_lock": lock})


def ends(s3: S3Server, key: str) -> datetime:
    head = s3.client().head_object(Bucket=BUCKET, Key=key)
    assert head["ObjectLockMode"] == "GOVERNANCE"
    return head["ObjectLockRetainUntilDate"]


def objects_of(s3: S3Server, backup_id: str) -> list[str]:
    """Return the keys of what a restore of the backup needs."""
    listed = s3.client().list_objects_v2(Bucket=BUCKET, Prefix=PREFIX)["Contents"]
    return [item["Key"] for item in listed if backup_id in item["Key"] and "/unfinished/" not in item["Key"]]


def test_every_object_of_a_chain_is_locked_as_long_as_its_newest_backup(s3: S3Server, chain: tuple[str, ...]) -> None:
    newest = min(ends(s3, key) for key in objects_of(s3, chain[2]))
    assert newest > datetime.now(UTC) + timedelta(days=29)
    for name in chain[:2]:
        assert len(objects_of(s3, name)) > 3
        for key in objects_of(s3, name):
            assert ends(s3, key) > newest + timedelta(days=14)


def test_the_next_backups_extend_no_lock_that_is_long_enough(
    s3: S3Server, world: World, chain: tuple[str, ...]
) -> None:
    key = PREFIX + layout.manifest("main", chain[0])
    before = ends(s3, key)
    object_locks.extend_locks(instance(s3, world), Repository.open(*open_store(s3.settings(STOLEN))), chain[2])
    assert ends(s3, key) == before


def test_who_has_the_credentials_of_the_host_destroys_no_version_of_an_object(
    s3: S3Server, chain: tuple[str, ...]
) -> None:
    thief, owner = s3.client(STOLEN), s3.client()
    soon = datetime.now(UTC) + timedelta(minutes=5)
    versions = [v for v in owner.list_object_versions(Bucket=BUCKET, Prefix=PREFIX)["Versions"] if chain[0] in v["Key"]]
    assert versions
    for version in versions:
        place: Any = {"Bucket": BUCKET, "Key": version["Key"], "VersionId": version["VersionId"]}
        for bypass in (False, True):
            with pytest.raises(ClientError, match="AccessDenied"):
                thief.delete_object(**place, BypassGovernanceRetention=bypass)
            with pytest.raises(ClientError, match="AccessDenied"):
                thief.put_object_retention(
                    **place,
                    BypassGovernanceRetention=bypass,
                    Retention={"Mode": "GOVERNANCE", "RetainUntilDate": soon},
                )
        with pytest.raises(ClientError, match="AccessDenied"):
            thief.delete_object(Bucket=BUCKET, Key=version["Key"])
        with pytest.raises(ClientError, match="AccessDenied"):
            owner.delete_object(**place)


def test_what_a_thief_replaced_is_noticed_and_the_owner_brings_the_original_back(
    s3: S3Server, world: World, chain: tuple[str, ...]
) -> None:
    thief, owner = s3.client(STOLEN), s3.client()
    whole = verify.verify(instance(s3, world, None), Depth.READ)
    assert whole.is_whole
    key = PREFIX + layout.chunk("main", chain[0], "data", 1)
    size = owner.head_object(Bucket=BUCKET, Key=key)["ContentLength"]
    forged = thief.put_object(Bucket=BUCKET, Key=key, Body=bytes(size))["VersionId"]
    damaged = verify.verify(instance(s3, world, None), Depth.READ)
    assert not damaged.is_whole
    assert list(damaged.damage) == [chain[0]]
    owner.delete_object(Bucket=BUCKET, Key=key, VersionId=forged)
    assert verify.verify(instance(s3, world, None), Depth.READ).is_whole


def test_a_bucket_without_locks_is_named_before_the_first_backup(s3: S3Server, world: World, tmp_path: Path) -> None:
    s3.client().create_bucket(Bucket="no-locks")
    settings = s3.settings(None, object_lock=LOCK, url="s3://no-locks/p")
    repository = Repository(*open_store(settings), id="x")
    (found,) = object_locks.findings(instance(s3, world, None), repository)
    assert found.prevents_backups
