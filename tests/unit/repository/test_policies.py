"""The bucket policies that are shipped allow the keys that the repository makes, and no removal of anything else."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from zsnapdb.repository import layout
from zsnapdb.repository.layout import Key

CONFIGS = Path(__file__).parents[3] / "configs"
BUCKET = "arn:aws:s3:::my-backups/production/"
ID = "20261120T101112Z-7f3a"
NAME = "binlog.000007"
REPLACED = [
    layout.segment("main", ID, NAME, 0, 10),
    layout.segment_body("main", ID, NAME, 0, 10, "0123456789abcdef"),
    layout.binlog_chunk("main", ID, NAME, "0123456789abcdef", 1),
]
COMPLETE = layout.complete("main", ID)
KEPT = [
    layout.MARKER,
    layout.manifest("main", ID),
    layout.chunk("main", ID, "data", 1),
    layout.drill("main", ID),
    layout.evidence("main", 1),
    layout.rotated_binlog("main", ID, NAME),
    layout.incarnation("main", ID),
    COMPLETE,
]


def allowed(policy: str, action: str) -> list[str]:
    """Return the resources of a policy's statements that allow the action."""
    resources: list[str] = []
    for statement in json.loads((CONFIGS / policy).read_text())["Statement"]:
        if statement["Effect"] == "Allow" and action in statement["Action"]:
            named = statement["Resource"]
            resources += [named] if isinstance(named, str) else named
    return resources


def is_allowed(policy: str, action: str, key: Key) -> bool:
    return any(fnmatchcase(BUCKET + key, resource) for resource in allowed(policy, action))


@pytest.mark.parametrize("key", REPLACED, ids=str)
def test_a_host_may_remove_the_segments_and_chunks_that_a_rotated_binlog_replaces(key: Key) -> None:
    assert is_allowed("iam-policy.json", "s3:DeleteObject", key)


@pytest.mark.parametrize("key", KEPT, ids=str)
def test_a_host_may_remove_nothing_that_a_restore_needs(key: Key) -> None:
    assert not is_allowed("iam-policy.json", "s3:DeleteObject", key)


def test_a_host_may_replace_and_read_until_when_its_archive_is_complete() -> None:
    for action in ("s3:PutObject", "s3:GetObject"):
        assert is_allowed("iam-policy.json", action, layout.complete("main", ID))
    assert is_allowed("iam-policy-prune.json", "s3:DeleteObject", layout.complete("main", ID))


def test_a_host_that_only_writes_may_remove_nothing_and_reads_no_data_of_backups() -> None:
    assert allowed("iam-policy-write-only.json", "s3:DeleteObject") == []
    assert is_allowed("iam-policy-write-only.json", "s3:GetObject", layout.manifest("main", ID))
    assert not is_allowed("iam-policy-write-only.json", "s3:GetObject", layout.chunk("main", ID, "data", 1))


@pytest.mark.parametrize("policy", sorted(file.name for file in CONFIGS.glob("iam-policy*.json")))
def test_no_policy_lists_more_than_the_prefix_or_ends_a_protection(policy: str) -> None:
    text = (CONFIGS / policy).read_text()
    for forbidden in ("s3:*", "DeleteObjectVersion", "Bypass", "PutBucket", "PutLifecycle", 'LegalHold", "s3:Put'):
        assert forbidden not in text
    (listing,) = (row for row in json.loads(text)["Statement"] if "s3:ListBucket" in row["Action"])
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["production/*"]}}


@pytest.mark.parametrize("policy", ["iam-policy.json", "iam-policy-write-only.json"])
@pytest.mark.parametrize("key", [key for key in KEPT if "/chunks/" not in key and key not in (layout.MARKER, COMPLETE)])
def test_a_description_is_written_on_the_condition_that_there_is_none(policy: str, key: Key) -> None:
    (row,) = (row for row in json.loads((CONFIGS / policy).read_text())["Statement"] if row["Effect"] == "Deny")
    assert row["Action"] == ["s3:PutObject"]
    assert row["Condition"] == {"Null": {"s3:if-none-match": "true"}}
    assert any(fnmatchcase(BUCKET + key, resource) for resource in row["Resource"])


@pytest.mark.parametrize("policy", ["iam-policy.json", "iam-policy-write-only.json", "iam-policy-prune.json"])
def test_who_changes_a_repository_may_add_evidence_and_read_it_and_never_remove_it(policy: str) -> None:
    key = layout.evidence("main", 7)
    assert is_allowed(policy, "s3:PutObject", key)
    assert is_allowed(policy, "s3:GetObject", key)
    assert not is_allowed(policy, "s3:DeleteObject", key)
    (row,) = (row for row in json.loads((CONFIGS / policy).read_text())["Statement"] if row["Effect"] == "Deny")
    assert row["Condition"] == {"Null": {"s3:if-none-match": "true"}}
    assert any(fnmatchcase(BUCKET + key, resource) for resource in row["Resource"])


def test_who_only_monitors_may_read_the_evidence() -> None:
    assert is_allowed("iam-policy-monitoring.json", "s3:GetObject", layout.evidence("main", 7))
    assert not is_allowed("iam-policy-monitoring.json", "s3:PutObject", layout.evidence("main", 7))
