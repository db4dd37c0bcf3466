"""A commit that was masked by older rules is handed out to nobody whom the rules of now forbid it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from tests.unit.support.manifests import manifest
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.clone import clone_info, masking_requirement
from zsnapdb.jobs.clone.sources import CloneSource, origin_in
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.zfs import datasets
from zsnapdb.zfs.datasets import Property

OLD, NEW = "1" * 64, "2" * 64
COMMIT = {"data": "t/c/data@x", "parent": "t/c@x"}


@pytest.fixture
def source() -> CloneSource:
    made = {role: Snapshot(name.partition("@")[0], "x", 1, 1) for role, name in COMMIT.items()}
    return CloneSource(
        SourceKind.COMMIT, SnapshotSet("20261120T100000Z-0001", made), origin_in(manifest()), is_prepared=True
    )


def say(monkeypatch: pytest.MonkeyPatch, masked_by: str | None, *, masked: str = "2026-11-20T10:00:00Z") -> None:
    """Let the snapshots of the commit say that they are masked, and by which rules (None: it is not recorded)."""
    said = {clone_info.MASKED_PROPERTY: Property(masked, "local")}
    if masked_by is not None:
        said[clone_info.MASKED_BY_PROPERTY] = Property(masked_by, "local")

    def properties_of(names: Collection[str], keys: Sequence[str]) -> dict[str, dict[str, Property]]:
        return {name: {key: said.get(key, Property("-", "-")) for key in keys} for name in names}

    monkeypatch.setattr(datasets, "properties_of", properties_of)


def test_commit_of_the_rules_of_now_needs_no_masking(source: CloneSource, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, NEW)
    assert masking_requirement.rules_for(source, NEW) == ""


def test_commit_of_older_rules_is_refused(source: CloneSource, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, OLD)
    with pytest.raises(PreflightError, match="masked with earlier rules"):
        masking_requirement.rules_for(source, NEW)
    assert masking_requirement.rules_for(source, "") == "", "no masking is required"


def test_commit_of_an_earlier_version_counts_as_before(source: CloneSource, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, None)
    assert masking_requirement.rules_for(source, NEW) == ""


def test_commit_that_is_not_masked_is_masked(source: CloneSource, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, None, masked=clone_info.NOT_MASKED)
    assert masking_requirement.rules_for(source, NEW) == NEW
