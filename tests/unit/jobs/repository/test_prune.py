"""A prune that ends at any moment leaves every listed backup complete. Unreadable backups are never removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.stored_backups import DyingStore, Killed, Site, dies
from zsnapdb.config import parse
from zsnapdb.errors import ConfigError, DamagedError, NotThere, PreflightError, RepositoryError
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.repository import prune as job
from zsnapdb.jobs.repository.local_leftovers import NOTHING_LOCAL
from zsnapdb.jobs.repository.prune import PrunePlan, PruneResult
from zsnapdb.planning.chain import restore_chain
from zsnapdb.planning.repository.retention import Unrestorable
from zsnapdb.repository import layout, pins
from zsnapdb.store.base import Afterlife, ObjectHold, StoredObject
from zsnapdb.store.local import LocalStore

TWO_CHAINS = [None, 0, 1, None, 3, 4]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    return Site(tmp_path / "store")


def prune(site: Site, unrestorable: Unrestorable = Unrestorable.KEEP) -> PruneResult:
    return job.prune(site.instance(), local=NOTHING_LOCAL, unrestorable=unrestorable)


def plan(site: Site) -> PrunePlan:
    return job.plan(site.instance(), local=NOTHING_LOCAL)


def manifests(site: Site) -> list[str]:
    return site.instance().open_repository().backup_ids("main")


def check_whole(site: Site) -> None:
    """Check that every listed backup has its chain, and every chunk with the size in its manifest."""
    repository = site.instance().open_repository()
    sizes = repository.sizes(layout.all_chunks("main"))
    catalogue = repository.catalogue("main")
    assert catalogue.damaged == ()
    for backup in catalogue.manifests:
        restore_chain(catalogue.manifests, backup)
        for volume in backup.volumes:
            for index, chunk in enumerate(volume.chunks, 1):
                assert sizes[layout.chunk("main", backup.backup_id, volume.role, index)] == chunk.stored_size


def test_what_no_rule_keeps_is_gone_with_all_its_chunks(site: Site) -> None:
    names = site.fill(TWO_CHAINS)
    planned = plan(site)
    result = prune(site)
    assert result.removed == planned.retention.removal_order == (names[2], names[1], names[0])
    assert result.size == planned.freed > 0
    assert manifests(site) == names[3:]
    assert {key.split("/")[2] for key in site.objects("main/chunks/")} == set(names[3:])
    check_whole(site)


def test_a_plan_changes_nothing(site: Site) -> None:
    site.fill(TWO_CHAINS)
    before = site.objects()
    plan(site)
    assert site.objects() == before


def test_pruning_again_removes_nothing(site: Site) -> None:
    site.fill(TWO_CHAINS)
    prune(site)
    again = prune(site)
    assert (again.removed, again.swept, again.objects) == ((), (), 0)


def test_increments_that_stay_keep_their_chain(site: Site) -> None:
    site.keep = "last = 1"
    names = site.fill([None, 0, 1, 2])
    assert prune(site).removed == ()
    assert manifests(site) == names


def test_without_rules_nothing_is_ever_removed(site: Site) -> None:
    site.fill(TWO_CHAINS)
    text = site.instance()
    bare = replace(text, settings=text.settings.model_copy(update={"keep": None}))
    for action in (
        lambda: job.plan(bare, local=NOTHING_LOCAL),
        lambda: job.prune(bare, local=NOTHING_LOCAL),
    ):
        with pytest.raises(ConfigError, match="no retention policy"):
            action()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_change_it_leaves_no_gap_and_a_later_run_finishes(
    site: Site, tmp_path: Path, after: bool
) -> None:
    names = site.fill([None, 0, None])
    site.keep = "last = 1"
    store = LocalStore(site.folder)
    content = {item.key: store.get(item.key) for item in store.list("")}
    with site.opening(DyingStore) as made:
        prune(site)
        changes = made[-1].changes
    whole = site.objects()
    assert len(changes) > 15
    for moment in range(1, len(changes) + 1):
        for key, body in content.items():
            store.put(key, body)
        with site.opening(dies(moment, after=after)), pytest.raises(Killed):
            prune(site)
        store.delete("main/writer.lock")
        check_whole(site)
        assert names[2] in manifests(site)
        site.later(days=30)
        prune(site)
        site.later()
        assert [k for k in site.objects() if not k.endswith(".lock")] == [k for k in whole if not k.endswith(".lock")]


def test_an_error_of_the_store_at_any_removal_is_told_and_the_next_run_goes_on(site: Site) -> None:
    site.fill([None, 0, None])
    site.keep = "last = 1"

    def refuse(what: str, key: str) -> None:
        if what == "delete" and key.endswith("00000002"):
            raise RepositoryError(f"removing {key}: denied")

    with site.opening(lambda store: DyingStore(store, refuse)), pytest.raises(RepositoryError, match="denied"):
        prune(site)
    check_whole(site)
    site.later(days=30)
    prune(site)
    assert len({key.split("/")[2] for key in site.objects("main/chunks/")}) == 1


def test_an_unreadable_manifest_stays_and_so_does_all_it_may_need(site: Site) -> None:
    names = site.fill([None, 0, None, None])
    site.keep = "last = 1"
    key = layout.manifest("main", names[1])
    LocalStore(site.folder).put(key, b"{")
    result = prune(site)
    assert result.removed == (names[2],)
    assert key in site.objects()
    assert {key.split("/")[2] for key in site.objects("main/chunks/")} == {names[0], names[1], names[3]}


def test_a_manifest_that_was_altered_since_it_was_first_read_stops_everything(site: Site) -> None:
    names = site.fill([None, None, None])
    site.keep = "last = 1"
    plan(site)
    key = layout.manifest("main", names[0])
    body = LocalStore(site.folder).get(key)
    LocalStore(site.folder).put(
        key, body.replace(b'"createtxg":2', b'"createtxg":3').replace(b'"held_ms":1.5', b'"held_ms":2.5')
    )
    with pytest.raises(DamagedError, match="differs from what this host read before"):
        prune(site)
    assert key in site.objects()


def test_if_what_would_stay_cannot_be_read_now_nothing_goes(site: Site) -> None:
    """This host has read the newest manifest before. Since then the manifest was damaged without changing its size."""
    names = site.fill([None, None, None])
    site.keep = "last = 1"
    plan(site)
    key = layout.manifest("main", names[2])
    LocalStore(site.folder).put(key, b"x" * len(LocalStore(site.folder).get(key)))
    with pytest.raises(DamagedError):
        prune(site)
    assert len(site.objects("main/manifests/")) == 3


def test_a_manifest_that_may_not_be_read_stops_everything(site: Site) -> None:
    names = site.fill([None, None, None])
    site.keep = "last = 1"

    class Denied(DyingStore):
        def get(self, key: str) -> bytes:
            if key.endswith(f"{names[1]}.json"):
                raise RepositoryError("denied")
            return super().get(key)

    with site.opening(Denied) as made, pytest.raises(RepositoryError, match="denied"):
        prune(site)
    assert not [change for change in made[-1].changes if change[0] == "delete"]


def test_a_pinned_backup_stays_with_its_chain_until_it_is_unpinned(site: Site) -> None:
    names = site.fill([None, 0, 1, None])
    site.keep = "last = 1"
    repository = site.instance().open_repository()
    pins.pin(repository, "main", names[1], "before the migration")
    assert prune(site).removed == (names[2],)
    decision = next(d for d in plan(site).retention.decisions if d.backup_id == names[1])
    assert decision.reasons == ("pinned: before the migration",)
    pins.unpin(repository, "main", names[1])
    assert prune(site).removed == (names[1], names[0])


def test_a_pin_that_cannot_be_read_pins(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    LocalStore(site.folder).put(layout.pin("main", names[0]), b"?")
    assert prune(site).removed == ()


def test_only_what_is_there_can_be_pinned(site: Site) -> None:
    site.fill([None])
    with pytest.raises(NotThere):
        pins.pin(site.instance().open_repository(), "main", "20200101T000000Z-0000", "x")
    with pytest.raises(NotThere, match="no pin"):
        pins.unpin(site.instance().open_repository(), "main", "20200101T000000Z-0000")


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


def leave(site: Site, name: str, *keys: str) -> None:
    for key in keys or (layout.chunk("main", name, "data", 1),):
        LocalStore(site.folder).put(key, b"left")


def test_leftovers_are_swept_only_after_their_time(site: Site) -> None:
    site.fill([None])
    old = f"{datetime.now(UTC) - timedelta(days=400):%Y%m%dT%H%M%SZ}-0000"
    leave(site, old)
    assert [(s.leftover.backup_id, s.remove) for s in plan(site).leftovers] == [(old, False)]
    assert prune(site).swept == ()
    site.later(days=6.9)
    assert prune(site).swept == ()
    site.later(days=7.1)
    assert prune(site).swept == (old,)
    assert not [key for key in site.objects() if old in key]


def test_parts_of_no_archived_binlog_are_swept_only_after_their_time(site: Site) -> None:
    site.fill([None])
    store = LocalStore(site.folder)
    store.put("main/binlogs/incarnations/20261121T101112Z-7f3a.json", b"?")
    parts = [
        "main/binlogs/20261121T101112Z-7f3a/chunks/binlog.000007/00aa/00000001",
        "main/binlogs/20261121T101112Z-7f3a/segments/binlog.000008/0000000000000000-0000000000000005-0001",
    ]
    foreign = [
        "main/binlogs/20261121T101112Z-7f3a/chunks/binlog.000007/README",
        "main/binlogs/another/chunks/binlog.000007/00aa/00000001",
    ]
    for key in (*parts, *foreign):
        store.put(key, b"12345")
    assert [(s.leftover.name, s.leftover.size, s.remove) for s in plan(site).binlog_leftovers] == [
        ("binlog.000007", 5, False),
        ("binlog.000008", 5, False),
    ]
    site.later(days=6.9)
    assert prune(site).swept == ()
    site.later(days=7.1)
    assert plan(site).freed == 10
    assert prune(site).swept == ("20261121T101112Z-7f3a/binlog.000007", "20261121T101112Z-7f3a/binlog.000008")
    assert [key for key in site.objects() if "/binlogs/" in key] == [
        *foreign,
        "main/binlogs/incarnations/20261121T101112Z-7f3a.json",
    ]


def test_a_leftover_with_an_id_from_the_future_is_not_swept(site: Site) -> None:
    site.fill([None])
    leave(site, f"{datetime.now(UTC) + timedelta(days=900):%Y%m%dT%H%M%SZ}-0000")
    site.later(days=30)
    assert prune(site).swept == ()


def mark(site: Site, name: str, *from_guids: int | None) -> None:
    snapshots = {str(n): {"name": "x", "guid": 1, "from_guid": guid} for n, guid in enumerate(from_guids)}
    document = {"format": 1, "backup_id": name, "host": "db1", "snapshots": snapshots}
    LocalStore(site.folder).put(layout.unfinished_backup("main", name), json.dumps(document).encode())


def test_what_an_unfinished_backup_builds_on_stays_until_its_mark_is_swept(site: Site) -> None:
    names = site.fill([None, None, None, None])
    site.keep = "last = 1"
    begun = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ffff"
    leave(site, begun)
    mark(site, begun, 20, 21)
    result = prune(site)
    assert manifests(site) == [names[1], names[3]]
    assert result.swept == ()
    site.later(days=8)
    assert prune(site).removed == (names[1],)
    assert not [key for key in site.objects() if begun in key]


def test_a_mark_that_does_not_say_what_it_builds_on_keeps_everything(site: Site) -> None:
    site.fill([None, None, None])
    site.keep = "last = 1"
    LocalStore(site.folder).put(layout.unfinished_backup("main", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-ffff"), b"{")
    assert prune(site).removed == ()


def test_a_mark_beside_its_manifest_means_nothing_and_goes_with_it(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    mark(site, names[0], 10, 11)
    assert prune(site).removed == (names[0],)
    assert site.objects("main/unfinished/") == []


def test_objects_with_other_keys_than_ours_are_never_removed(site: Site) -> None:
    names = site.fill([None, None])
    site.keep = "last = 1"
    foreign = [
        f"main/chunks/{names[0]}/notes.txt",
        f"main/chunks/{names[0]}/data/00000001.bak",
        "main/chunks/by-hand/data/00000001",
        "main/elsewhere/00000001",
        "main/manifests/README",
        "other/chunks/20200101T000000Z-0000/data/00000001",
    ]
    leave(site, "", *foreign)
    site.later(days=30)
    prune(site)
    prune(site)
    assert manifests(site) == [names[1]]
    assert set(foreign) <= set(site.objects())


def test_chunks_whose_manifest_is_not_listed_but_there_are_left_alone(site: Site) -> None:
    """A listing that lags must not make a good backup look like garbage."""
    names = site.fill([None, None])

    class Lagging(DyingStore):
        def list(self, prefix: str) -> Iterator[StoredObject]:
            return (item for item in super().list(prefix) if item.key != layout.manifest("main", names[0]))

    site.later(days=30)
    with site.opening(Lagging):
        result = prune(site)
    assert result.swept == ()
    assert "has a manifest that the store did not list" in result.notes[0]
    check_whole(site)


def test_a_backup_with_a_gap_in_its_chain_stays_unless_its_removal_is_requested(site: Site) -> None:
    names = site.fill([None, 0, 1, None])
    site.keep = "last = 1"
    LocalStore(site.folder).delete(layout.manifest("main", names[0]))
    assert prune(site).removed == ()
    assert prune(site, Unrestorable.REMOVE).removed == (names[2], names[1])
    assert manifests(site) == [names[3]]


class LockingStore(DyingStore):
    """A bucket with locks."""

    holds: dict[str, ObjectHold]

    def hold(self, key: str) -> ObjectHold | None:
        return self.holds.get(key)

    def afterlife(self) -> Afterlife:
        return Afterlife(keeps_versions=True, days=30, has_locks=True)


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


def test_a_repository_elsewhere_is_pruned_by_its_own_rules(site: Site) -> None:
    site.keep = "last = 1"
    text = site.text() + "[repository.there.keep]\nlast = 2\n[repository.here.keep]\nlast = 9\n"
    settings = parse(text, "test")
    assert Instance.at(settings, "main", None).retention_policy().last == 1
    assert Instance.at(settings, "main", "here").retention_policy().last == 1
    assert Instance.at(settings, "main", "there").retention_policy().last == 2
    with pytest.raises(ConfigError, match="'nowhere' is not configured"):
        Instance.at(settings, "main", "nowhere")
