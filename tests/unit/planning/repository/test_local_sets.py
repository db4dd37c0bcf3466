"""Snapshots and bookmarks go with their backups, unless somebody needs them or nothing proves that they are ours."""

from __future__ import annotations

from typing import Any

import pytest

from zsnapdb.planning.repository.local_sets import (
    LocalBookmark,
    LocalDecision,
    LocalSnapshot,
    RepositoryAfterPrune,
    decide,
)

OLD, MIDDLE, NEW = "20261101T000000Z-0000", "20261102T000000Z-0000", "20261103T000000Z-0000"
GUIDS = {OLD: 1, MIDDLE: 2, NEW: 3}


def snapshot(
    backup_id: str, repository: str = "here", holds: int = 0, clones: tuple[str, ...] = (), guid: int = 0
) -> LocalSnapshot:
    return LocalSnapshot(
        f"tank/x@zsnapdb-{backup_id}", backup_id, guid or GUIDS[backup_id], repository, holds, clones, 10
    )


def bookmark(backup_id: str, guid: int = 0) -> LocalBookmark:
    return LocalBookmark(f"tank/x#zsnapdb-{backup_id}", backup_id, guid or GUIDS[backup_id])


def there(kept: set[str], removed: set[str], base: str = NEW) -> RepositoryAfterPrune:
    return RepositoryAfterPrune("here", kept, {name: {GUIDS[name]} for name in removed}, base)


def of(decisions: tuple[LocalDecision, ...]) -> dict[str, bool]:
    return {d.name: d.remove for d in decisions}


def test_what_goes_from_the_repository_goes_here() -> None:
    removed = of(decide([snapshot(OLD), snapshot(NEW)], [bookmark(OLD), bookmark(NEW)], there({NEW}, {OLD}), None))
    assert removed == {
        snapshot(OLD).name: True,
        bookmark(OLD).name: True,
        snapshot(NEW).name: False,
        bookmark(NEW).name: False,
    }


@pytest.mark.parametrize("needed", [{"holds": 1}, {"clones": ("tank/clone",)}])
def test_what_somebody_needs_stays_and_says_who(needed: dict[str, Any]) -> None:
    (decision,) = decide([snapshot(OLD, **needed)], [], there({NEW}, {OLD}), None)
    assert not decision.remove
    assert ("tank/clone" if "clones" in needed else "zfs holds") in decision.reason


def test_a_snapshot_with_the_name_and_not_the_guid_of_a_backup_stays() -> None:
    (decision,) = decide([snapshot(OLD, guid=99)], [], there({NEW}, {OLD}), None)
    assert not decision.remove


def test_a_bookmark_with_the_name_and_not_the_guid_of_a_backup_stays() -> None:
    (decision,) = decide([], [bookmark(OLD, guid=99)], there({NEW}, {OLD}), None)
    assert not decision.remove


def test_what_was_removed_from_this_repository_elsewhere_goes_here_too() -> None:
    removed = of(decide([snapshot(OLD), snapshot(NEW)], [bookmark(OLD)], there({NEW}, set()), None))
    assert removed == {snapshot(OLD).name: True, bookmark(OLD).name: True, snapshot(NEW).name: False}


@pytest.mark.parametrize("repository", ["", "elsewhere"])
def test_what_this_repository_never_had_stays(repository: str) -> None:
    removed = of(decide([snapshot(OLD, repository), snapshot(NEW)], [bookmark(OLD)], there({NEW}, set()), None))
    assert not any(removed.values())


def test_what_is_newer_than_all_that_is_stored_stays() -> None:
    assert not any(of(decide([snapshot(NEW)], [], there({OLD}, set(), OLD), None)).values())


def test_an_empty_repository_takes_nothing_with_it() -> None:
    assert not any(of(decide([snapshot(OLD)], [bookmark(OLD)], there(set(), set(), ""), None)).values())


def test_only_so_many_of_those_that_stay_also_stay_here_and_their_bookmarks_do() -> None:
    removed = of(
        decide([snapshot(name) for name in GUIDS], [bookmark(name) for name in GUIDS], there(set(GUIDS), set()), 1)
    )
    assert removed == {
        **{snapshot(name).name: name != NEW for name in GUIDS},
        **{bookmark(name).name: False for name in GUIDS},
    }


def test_what_the_next_increment_builds_on_stays_whatever_the_limit() -> None:
    removed = of(decide([snapshot(name) for name in GUIDS], [], there(set(GUIDS), set(), OLD), 1))
    assert removed == {snapshot(OLD).name: False, snapshot(MIDDLE).name: True, snapshot(NEW).name: False}
