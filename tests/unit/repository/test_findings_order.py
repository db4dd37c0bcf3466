"""The latest finding about a backup counts, whatever clock its check had."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from zsnapdb.repository import drills, verifications
from zsnapdb.repository.drills import CheckPart, Evidence, Outcome
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Checks, Depth
from zsnapdb.store.local import LocalStore

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
BACKUP = "20261120T000000Z-7f3a"


def test_a_check_of_the_future_hides_no_damage_that_a_later_one_found(tmp_path: Path) -> None:
    repository = Repository.open_or_create(LocalStore(tmp_path), "", "id-1")
    verifications.add(repository, "main", NOW + timedelta(days=40), {BACKUP: ()}, "a drill")
    verifications.add(repository, "main", NOW, {BACKUP: ("a chunk is missing",)}, "a drill")
    assert verifications.read(repository, "main").damaged() == {BACKUP: ("a chunk is missing",)}
    verifications.add(repository, "main", NOW - timedelta(days=40), {BACKUP: ()}, "a drill")
    assert verifications.read(repository, "main").damaged() == {}


def test_a_listing_that_found_damage_counts_if_it_came_after_the_reading(tmp_path: Path) -> None:
    repository = Repository.open_or_create(LocalStore(tmp_path), "", "id-1")
    read = verifications.finding(Depth.READ, NOW + timedelta(days=40), (), {})
    listed = verifications.finding(Depth.LISTED, NOW, ("it is missing",), {Depth.READ: read})
    key = verifications.new_key("main", NOW)
    verifications.write(repository, "main", key, Checks({BACKUP: {Depth.READ: read, Depth.LISTED: listed}}))
    assert verifications.read(repository, "main").damaged() == {BACKUP: ("it is missing",)}


@pytest.mark.parametrize("later", [timedelta(hours=-1), timedelta(hours=1)])
def test_of_two_drills_with_one_number_the_failed_one_is_the_newest(tmp_path: Path, later: timedelta) -> None:
    """Two hosts drilled at the same time and gave the same number. The clock of neither decides."""
    repository = Repository.open_or_create(LocalStore(tmp_path), "", "id-1")
    drills.write(repository, evidence("0001", NOW, Outcome.PASSED, 1))
    drills.write(repository, evidence("0002", NOW + timedelta(days=1), Outcome.PASSED, 2))
    drills.write(repository, evidence("0003", NOW + timedelta(days=1) + later, Outcome.FAILED, 2))
    assert [one.outcome for one in drills.newest(repository, "main", 5)][-1] is Outcome.FAILED
    assert drills.read(repository, "main", "latest").outcome is Outcome.FAILED


def evidence(suffix: str, at: datetime, outcome: Outcome, number: int) -> Evidence:
    return Evidence(
        drill_id=f"{at:%Y%m%dT%H%M%SZ}-{suffix}",
        instance="main",
        repository_id="id-1",
        requested="latest",
        backup_id=BACKUP,
        seed=1,
        host="h",
        started=at,
        finished=at,
        tool_version="1",
        zfs_version="2",
        server_version="3",
        position="",
        steps=(),
        checks=(CheckPart(kind="table", what="a", outcome=outcome),),
        sequence=number,
    )
