"""Snapshots and bookmarks go with their backups, unless somebody needs them or nothing proves that they are ours."""

from __future__ import annotations

from typing import Any

import pytest

from zsnapdb.planning.repository.local_snapshot_sets import (
    LocalBookmark,
    LocalDecision,
    LocalLimits,
    LocalSnapshot,
    RepositoryAfterPrune,
    decide,
    describe_user,
)

OLD, MIDDLE, NEW = "20261101T000000Z-0000", "20261102T000000Z-0000", "20261103T000000Z-0000"
GUIDS = {OLD: 1, MIDDLE: 2, NEW: 3}


def snapshot(
    backup_id: str, repository: str = "here", holds: int = 0, clones: tuple[str, ...] = (), guid: int = 0
) -> LocalSnapshot:
    return LocalSnapshot(
        f"tank/x@zsnapdb-{backup_id}",
        backup_id,
        guid or GUIDS[backup_id],
        repository,
        holds,
        clones,
        10,
        GUIDS[backup_id],
    )


def bookmark(backup_id: str, guid: int = 0) -> LocalBookmark:
    return LocalBookmark(f"tank/x#zsnapdb-{backup_id}", backup_id, guid or GUIDS[backup_id])


def there(
    kept: set[str], removed: set[str], base: str = NEW, before: frozenset[str] = frozenset()
) -> RepositoryAfterPrune:
    return RepositoryAfterPrune(
        "here", kept, {name: {GUIDS[name]} for name in removed}, base, {name: {GUIDS[name]} for name in before}
    )


ALL, ONE = LocalLimits(None, 1), LocalLimits(1, 1)


def of(decisions: tuple[LocalDecision, ...]) -> dict[str, bool]:
    return {d.name: d.remove for d in decisions}


def test_what_goes_from_the_repository_goes_here() -> None:
    removed = of(decide([snapshot(OLD), snapshot(NEW)], [bookmark(OLD), bookmark(NEW)], there({NEW}, {OLD}), ALL))
    assert removed == {
        snapshot(OLD).name: True,
        bookmark(OLD).name: True,
        snapshot(NEW).name: False,
        bookmark(NEW).name: False,
    }


@pytest.mark.parametrize("needed", [{"holds": 1}, {"clones": ("tank/clone",)}])
def test_what_somebody_needs_stays_and_says_who(needed: dict[str, Any]) -> None:
    decision, _ = decide([snapshot(OLD, **needed), snapshot(NEW)], [], there({NEW}, {OLD}), ALL)
    assert not decision.remove
    assert ("tank/clone" if "clones" in needed else "zfs holds") in decision.reason


def test_a_snapshot_with_the_name_and_not_the_guid_of_a_backup_stays() -> None:
    (decision,) = decide([snapshot(OLD, guid=99)], [], there({NEW}, {OLD}), ALL)
    assert not decision.remove


def test_a_bookmark_with_the_name_and_not_the_guid_of_a_backup_stays() -> None:
    (decision,) = decide([], [bookmark(OLD, guid=99)], there({NEW}, {OLD}), ALL)
    assert not decision.remove


def test_what_an_earlier_prune_of_this_host_removed_goes_here_too() -> None:
    before = there({NEW}, set(), before=frozenset({OLD}))
    removed = of(decide([snapshot(OLD), snapshot(NEW)], [bookmark(OLD)], before, ALL))
    assert removed == {snapshot(OLD).name: True, bookmark(OLD).name: True, snapshot(NEW).name: False}


def test_a_repository_that_lost_its_backups_takes_none_of_their_snapshots_with_it() -> None:
    decisions = decide([snapshot(name) for name in GUIDS], [bookmark(name) for name in GUIDS], there({NEW}, set()), ALL)
    assert not any(d.remove for d in decisions)
    assert "no prune of this host removed it" in next(d.reason for d in decisions if d.name == snapshot(OLD).name)


def test_the_newest_sets_of_this_host_stay_whatever_the_repository_lists() -> None:
    """Forged backups can make a retention policy let every backup of this host go."""
    forged = RepositoryAfterPrune("here", {"20261109T000000Z-0000"}, {n: {GUIDS[n]} for n in GUIDS}, "", {})
    removed = of(
        decide([snapshot(n) for n in GUIDS], [bookmark(n) for n in GUIDS], forged, LocalLimits(most=None, least=2))
    )
    assert removed == {
        **{snapshot(n).name: n == OLD for n in GUIDS},
        **{bookmark(n).name: n == OLD for n in GUIDS},
    }


def test_no_id_with_a_wrong_clock_takes_the_place_of_a_newer_set() -> None:
    """Transaction groups say which sets of this host are the newest."""
    ahead = LocalSnapshot("tank/x@zsnapdb-a", "20991101T000000Z-0000", 9, "here", 0, (), 10, createtxg=0)
    gone = RepositoryAfterPrune("here", set(), {OLD: {1}, ahead.backup_id: {9}}, "", {})
    assert of(decide([ahead, snapshot(OLD)], [], gone, ALL)) == {ahead.name: True, snapshot(OLD).name: False}


@pytest.mark.parametrize("repository", ["", "elsewhere"])
def test_what_this_repository_never_had_stays(repository: str) -> None:
    removed = of(decide([snapshot(OLD, repository), snapshot(NEW)], [bookmark(OLD)], there({NEW}, set()), ALL))
    assert not any(removed.values())


def test_what_is_newer_than_all_that_is_stored_stays() -> None:
    assert not any(of(decide([snapshot(NEW)], [], there({OLD}, set(), OLD), ALL)).values())


def test_an_empty_repository_takes_nothing_with_it() -> None:
    assert not any(of(decide([snapshot(OLD)], [bookmark(OLD)], there(set(), set(), ""), ALL)).values())


def test_only_so_many_of_those_that_stay_also_stay_here_and_their_bookmarks_do() -> None:
    removed = of(
        decide([snapshot(name) for name in GUIDS], [bookmark(name) for name in GUIDS], there(set(GUIDS), set()), ONE)
    )
    assert removed == {
        **{snapshot(name).name: name != NEW for name in GUIDS},
        **{bookmark(name).name: False for name in GUIDS},
    }


def test_what_the_next_increment_builds_on_stays_whatever_the_limit() -> None:
    removed = of(decide([snapshot(name) for name in GUIDS], [], there(set(GUIDS), set(), OLD), ONE))
    assert removed == {snapshot(OLD).name: False, snapshot(MIDDLE).name: True, snapshot(NEW).name: False}


@pytest.mark.parametrize("limits", [LocalLimits(None, 2), LocalLimits(2, 2)])
@pytest.mark.parametrize("repository", ["here", "elsewhere"])
def test_incomplete_or_unknown_set_takes_no_place_of_the_newest(limits: LocalLimits, repository: str) -> None:
    """A set that lost a snapshot by `zfs rename`, or one that this repository never had, is no copy to count on."""
    middle = snapshot(MIDDLE, repository)
    if repository == "here":
        after = RepositoryAfterPrune("here", {MIDDLE, NEW}, {OLD: {1}}, NEW, {}, {2: MIDDLE, 22: MIDDLE, 3: NEW})
    else:
        after = there({NEW}, {OLD})
    removed = of(decide([snapshot(OLD), middle, snapshot(NEW)], [], after, limits))
    assert not any(removed.values())
    assert of(decide([snapshot(OLD), middle, snapshot(MIDDLE, guid=22), snapshot(NEW)], [], after, limits))[
        snapshot(OLD).name
    ] is (repository == "here")


RECEIVED = "received set ID, removed by `zsnapdb clone prepare main --from received/ID --remove`"
PREPARED = "prepared set ID, removed by `zsnapdb clone prepare main --from prepared/ID --remove`"


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("tank/zsnapdb/received/ID/c", RECEIVED),
        ("t/prepared/ID/c/data", PREPARED),
        ("tank/zsnapdb/clones/received/r1", "clone tank/zsnapdb/clones/received/r1"),
        ("tank/zsnapdb/clones/c/r1/data", "clone tank/zsnapdb/clones/c/r1/data"),
        ("received/c", "clone received/c"),
    ],
)
def test_user_of_a_local_set_is_named_as_what_it_is(dataset: str, said: str) -> None:
    assert describe_user(dataset, "main") == said
