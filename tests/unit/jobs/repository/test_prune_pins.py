"""Pinned backups, and backups that the store locks, stay with their chains."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.unit.support.pruning import manifests, plan, prune
from tests.unit.support.stored_backups import DyingStore, Site, store_backup
from zsnapdb.base.errors import NotFound, PreflightError
from zsnapdb.jobs.repository import inventory as job
from zsnapdb.repository import backup_marks, layout
from zsnapdb.store.base import DeletionPolicy, ObjectHold
from zsnapdb.store.local import LocalStore


def test_a_pinned_backup_stays_with_its_chain_until_it_is_unpinned(site: Site) -> None:
    names = site.fill([None, 0, 1, None])
    site.keep = "last = 1"
    repository = site.instance().open_repository()
    backup_marks.pin(repository, "main", names[1], "before the migration")
    assert prune(site).removed == (names[2],)
    decision = next(d for d in plan(site).retention.decisions if d.backup_id == names[1])
    assert decision.reasons == ("pinned: before the migration",)
    backup_marks.unpin(repository, "main", names[1])
    assert prune(site).removed == (names[1], names[0])


def test_a_pin_that_was_hidden_in_the_repository_holds_on_the_host_that_made_it(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    job.pin(site.instance(), names[0], "audit")
    LocalStore(site.folder).delete(layout.pin("main", names[0]))
    assert prune(site).removed == ()
    decision = next(d for d in plan(site).retention.decisions if d.backup_id == names[0])
    assert "the repository lacks the pin" in decision.reasons[0]
    job.unpin(site.instance(), names[0])
    with pytest.raises(NotFound, match="no pin"):
        job.unpin(site.instance(), names[0])
    assert prune(site).removed == (names[0],)


def test_the_latest_backup_that_is_pinned_is_none_from_the_future(site: Site) -> None:
    names = site.fill([None, None])
    repository = site.instance().open_repository()
    store_backup(repository, "20991111T000000Z-0001", 7, None)
    assert job.pin(site.instance(), "latest", "audit").backup_id == names[1]


def test_a_pin_that_cannot_be_read_pins(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    LocalStore(site.folder).put(layout.pin("main", names[0]), b"?")
    assert prune(site).removed == ()


def test_only_what_is_there_can_be_pinned(site: Site) -> None:
    site.fill([None])
    with pytest.raises(NotFound):
        backup_marks.pin(site.instance().open_repository(), "main", "20200101T000000Z-0000", "x")
    with pytest.raises(NotFound, match="no pin"):
        backup_marks.unpin(site.instance().open_repository(), "main", "20200101T000000Z-0000")


def test_a_pin_that_comes_while_it_prunes_is_honoured(site: Site) -> None:
    names = site.fill([None, None, None])
    site.keep = "last = 1"

    def pin_meanwhile(what: str, key: str) -> None:
        if what == "delete" and names[1] in key:
            LocalStore(site.folder).put(layout.pin("main", names[0]), b'{"reason": "now", "since": ""}')

    site.wraps["here"] = lambda store: DyingStore(store, pin_meanwhile)
    with pytest.raises(PreflightError, match="was pinned"):
        prune(site)
    assert manifests(site) == [names[0], names[2]]


class LockingStore(DyingStore):
    """A bucket with locks."""

    holds: dict[str, ObjectHold]

    def hold(self, key: str) -> ObjectHold | None:
        return self.holds.get(key)

    def afterlife(self) -> DeletionPolicy:
        return DeletionPolicy(keeps_versions=True, days=30, has_locks=True)


def test_what_the_store_locks_stays_with_its_chain_and_says_until_when(site: Site) -> None:
    names = site.fill([None, 0, None, None, None])
    site.keep = "last = 1"
    until = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    LockingStore.holds = {
        layout.manifest("main", names[1]): ObjectHold(until),
        layout.manifest("main", names[2]): ObjectHold(None),
    }
    site.wraps["here"] = LockingStore
    result = prune(site)
    assert result.removed == (names[3],)
    reasons = {d.backup_id: d.reasons for d in result.plan.retention.decisions}
    assert reasons[names[1]] == ("locked by the store: until 2030-01-02 03:04 UTC",)
    assert reasons[names[2]] == ("locked by the store: by a legal hold",)
    assert reasons[names[0]] == (f"needed by {names[1]}",)
