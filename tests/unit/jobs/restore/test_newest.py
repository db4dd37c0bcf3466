"""Nothing is called the newest while something newer was stored that cannot be used."""

from __future__ import annotations

import pytest

from tests.unit.support.planning_host import BACKUPS, PlanningHost
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.restore.restore_inputs import newest_backup
from zsnapdb.repository import layout
from zsnapdb.store.local import LocalStore
from zsnapdb.zfs import snapshots, version

POINTS = ["latest", "latest-backup"]


def damage(host: PlanningHost, backup_id: str, how: str) -> None:
    """Damage the manifest of a backup that this host stored."""
    repository = host.instance.open_repository()
    for name in repository.backup_ids("main"):
        host_backup_record.note_stored(host.instance, repository, *repository.digested_manifest("main", name))
    key = str(layout.manifest("main", backup_id))
    store = LocalStore(host.folder / "store")
    body = store.get(key)
    store.delete(key)
    if how != "gone":
        store.put(key, {"empty": b"", "truncated": body[:-30], "altered": body.replace(b"tank", b"ta\nk")}[how])


@pytest.mark.parametrize("to", POINTS)
@pytest.mark.parametrize("how", ["empty", "truncated", "altered", "gone"])
def test_latest_is_refused_and_names_the_newer_backup_and_the_option(host: PlanningHost, to: str, how: str) -> None:
    host.store(BACKUPS[1])
    damage(host, BACKUPS[1], how)
    with pytest.raises(DamagedError) as refused:
        host.plan(to)
    assert refused.value.exit_code == 7
    assert f"{to} would be backup {BACKUPS[0]}, but something newer was stored" in refused.value.message
    assert f"backup {BACKUPS[1]}: " in refused.value.message
    assert "--accept-older" in refused.value.hint


@pytest.mark.parametrize("to", POINTS)
def test_who_accepts_an_older_state_gets_it_with_a_note(host: PlanningHost, to: str) -> None:
    host.store(BACKUPS[1])
    damage(host, BACKUPS[1], "gone")
    planned = host.plan(to, accepts_older=True)
    assert planned.backup_id == BACKUPS[0]
    assert any(BACKUPS[1] in note for note in planned.point.notes)


def test_a_host_without_a_record_counts_manifests_that_cannot_be_read(host: PlanningHost) -> None:
    host.store(BACKUPS[1])
    key = str(layout.manifest("main", BACKUPS[1]))
    store = LocalStore(host.folder / "store")
    store.delete(key)
    assert host.plan("latest").backup_id == BACKUPS[0]
    store.put(key, b"{}")
    with pytest.raises(DamagedError):
        host.plan("latest")


@pytest.mark.parametrize("how", ["truncated", "gone"])
def test_an_older_backup_that_cannot_be_used_does_not_stop_the_newest(host: PlanningHost, how: str) -> None:
    host.store(BACKUPS[1])
    damage(host, BACKUPS[0], how)
    assert host.plan("latest").backup_id == BACKUPS[1]


def test_a_backup_named_by_its_id_is_restored_though_a_newer_one_is_gone(host: PlanningHost) -> None:
    host.store(BACKUPS[1])
    damage(host, BACKUPS[1], "gone")
    assert host.plan(BACKUPS[0]).backup_id == BACKUPS[0]


def test_a_repository_whose_only_backup_is_gone_is_damaged_and_not_empty(host: PlanningHost) -> None:
    damage(host, BACKUPS[0], "gone")
    with pytest.raises(DamagedError, match=BACKUPS[0]):
        host.plan("latest")


def test_the_newest_for_a_clone_is_refused_likewise(host: PlanningHost) -> None:
    host.store(BACKUPS[1])
    damage(host, BACKUPS[1], "gone")
    repository = host.instance.open_repository()
    with pytest.raises(DamagedError, match=BACKUPS[1]):
        newest_backup(host.instance, repository, accepts_older=False)
    assert newest_backup(host.instance, repository, accepts_older=True) == BACKUPS[0]


def test_what_this_host_stored_after_its_newest_local_set_is_known_without_the_repository(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "pool_guid", lambda _: 1)
    monkeypatch.setattr(snapshots, "created_points", lambda _: [])
    host.store(BACKUPS[1])
    damage(host, BACKUPS[1], "gone")
    for backup_id, after in ((BACKUPS[0], (BACKUPS[1],)), (BACKUPS[1], ())):
        made = SnapshotSet(backup_id, {"data": Snapshot("tank/x", f"zsnapdb-{backup_id}", 1, 1)})
        assert host_backup_record.stored_after(host.instance, made) == after


@pytest.mark.parametrize("kept", [True, False], ids=["new guid", "other pool"])
def test_older_set_is_not_newest_after_zpool_reguid(
    host: PlanningHost, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """`zpool reguid` and `zpool split` keep the transaction groups; a received bookmark or snapshot has another one."""
    host.store(BACKUPS[1])
    repository = host.instance.open_repository()
    for name in BACKUPS[:2]:
        host_backup_record.note_stored(host.instance, repository, *repository.digested_manifest("main", name))
    newest = repository.manifest("main", BACKUPS[1])
    points = [(newest.volumes[0].guid, newest.createtxg if kept else newest.createtxg + 1)]
    monkeypatch.setattr(version, "pool_guid", lambda _: newest.pool_guid + 1)
    monkeypatch.setattr(snapshots, "created_points", lambda _: points)
    made = SnapshotSet("20361102T000000Z-0000", {"data": Snapshot("tank/x", "x", 5, newest.createtxg - 1)})
    later = SnapshotSet("20061102T000000Z-0000", {"data": Snapshot("tank/x", "x", 5, newest.createtxg + 1)})
    assert (BACKUPS[1] in host_backup_record.stored_after(host.instance, made)) == kept
    assert host_backup_record.stored_after(host.instance, later) == ()


def test_a_repository_that_never_had_a_backup_is_empty(host: PlanningHost) -> None:
    host.instance.open_repository().delete(layout.manifest("main", BACKUPS[0]))
    with pytest.raises(NotFound):
        host.plan("latest")
