"""The latest finding about a backup counts, whatever clock its check had."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from zsnapdb.repository import verifications
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
