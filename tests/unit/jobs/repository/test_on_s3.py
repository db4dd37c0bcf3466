"""What is done to a repository in a folder is done to one in a bucket, below a prefix, beside another one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from tests.unit.support.s3 import bucket
from tests.unit.support.stored_backups import Site
from zsnapdb.jobs.repository import copy, prune, prune_facts, verify
from zsnapdb.repository import backup_marks, layout
from zsnapdb.repository.verifications import Depth

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectLockRetentionTypeDef


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "store-there").mkdir()
    with bucket(locked=True):
        yield Site(tmp_path / "store", url="s3://backups/some/prefix")


def test_a_history_in_a_bucket_is_verified_copied_and_pruned(site: Site) -> None:
    other = Site(site.folder.parent / "beside" / "store", url="s3://backups/some/prefix-2")
    other.fill([None])
    before = other.objects()
    names = site.fill([None, 0, None, None])
    client = boto3.client("s3", region_name="us-east-1")
    lock: ObjectLockRetentionTypeDef = {"Mode": "COMPLIANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(days=2)}
    client.put_object_retention(
        Bucket="backups", Key=f"some/prefix/{layout.manifest('main', names[1])}", Retention=lock
    )
    site.keep = "last = 1"
    assert verify.verify(site.instance(), Depth.READ).is_whole
    copied = copy.copy(site.instance(), site.instance("there"))
    assert sorted(copied.copied) == names
    backup_marks.pin(site.instance().open_repository(), "main", names[3], "why not")
    result = prune.prune(site.instance(), local=prune_facts.NOTHING_LOCAL)
    assert result.removed == (names[2],)
    assert result.plan.afterlife.keeps_versions
    reasons = {d.backup_id: d.reasons[0] for d in result.plan.retention.decisions}
    assert reasons[names[1]].startswith("locked by the store: until ")
    site.later(days=30)
    site.instance().open_repository().delete(layout.chunk("main", names[1], "data", 1))
    verified = verify.verify(site.instance(), Depth.LISTED)
    assert list(verified.damage) == [names[1]]
    assert verified.meaning.restorable == (names[0], names[3])
    assert other.objects() == before
    assert verify.verify(site.instance("there"), Depth.READ).is_whole
