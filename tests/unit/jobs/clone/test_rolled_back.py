"""After `zfs rollback`, `latest` is the newest state of production, and no backup of the abandoned state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.unit.support.manifests import manifest
from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import AbandonedHistoryError, PreflightError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.snapshot_set_properties import MARKS
from zsnapdb.jobs.clone import source_lookup
from zsnapdb.jobs.clone.sources import CloneSource, origin_in
from zsnapdb.jobs.health import recovery_coverage
from zsnapdb.jobs.restore import restore_inputs
from zsnapdb.jobs.restore.restore_inputs import RestoreFacts
from zsnapdb.planning.clone.lease import SourceKind
from zsnapdb.planning.restore.point_forms import AtBackup
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import datasets, snapshots, version
from zsnapdb.zfs.snapshots import OwnedSnapshot

LOCAL, MIDDLE, NEWEST = "20261119T100000Z-0001", "20261119T100000Z-0002", "20261119T100000Z-0003"
GUIDS = {LOCAL: 1, MIDDLE: 2, NEWEST: 3}
POOL = manifest().pool_guid
CASES = pytest.mark.parametrize(
    ("pool", "on_production", "latest"),
    [
        (POOL, {LOCAL, MIDDLE, NEWEST}, NEWEST),
        (POOL, {LOCAL, NEWEST}, NEWEST),
        (POOL, {LOCAL, MIDDLE}, MIDDLE),
        (POOL, {LOCAL}, None),
        (POOL, set(), NEWEST),
        (POOL + 1, {LOCAL}, NEWEST),
    ],
)


@pytest.fixture
def instance(host: PlanningHost, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """An instance on a host with its dataset and two stored backups, which are later than its local set."""
    repository = host.instance.open_repository()
    for name in (MIDDLE, NEWEST):
        made = manifest(name)
        volumes = tuple(volume.model_copy(update={"guid": GUIDS[name], "from_guid": None}) for volume in made.volumes)
        update = {"volumes": volumes, "createtxg": GUIDS[name], "repository_id": repository.id}
        repository.commit(made.model_copy(update=update))
    monkeypatch.setattr(datasets, "exists", lambda _: True)
    return host.instance


def produce(monkeypatch: pytest.MonkeyPatch, pool: int, on_production: Collection[str]) -> None:
    guids = frozenset(GUIDS[name] for name in on_production)

    def known_states(_: Collection[str]) -> tuple[frozenset[int], int | None]:
        return guids, min(guids, default=None)

    monkeypatch.setattr(version, "pool_guid", lambda _: pool)
    monkeypatch.setattr(snapshots, "known_states", known_states)
    monkeypatch.setattr(snapshots, "send_points_there", lambda _: {})
    # No set lacks a volume.
    monkeypatch.setattr(snapshots, "list_owned", lambda *_: [])


def read(instance: Instance, repository: Repository) -> RestoreFacts:
    return restore_inputs.read_known(instance, repository, AtBackup(None), "latest-backup")


@CASES
def test_clone_after_rollback_is_of_production(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, pool: int, on_production: Collection[str], latest: str | None
) -> None:
    produce(monkeypatch, pool, on_production)
    repository = instance.open_repository()
    here = SnapshotSet(LOCAL, {"data": Snapshot("tank/db", f"zsnapdb-{LOCAL}", GUIDS[LOCAL], GUIDS[LOCAL])})
    local = CloneSource(SourceKind.BACKUP, here, origin_in(manifest()))
    assert source_lookup._newest_stored(instance, repository, local, accepts_older=False) == latest


@pytest.mark.parametrize(("received", "latest"), [({NEWEST: 5}, None), ({NEWEST: 50}, NEWEST), ({}, NEWEST)])
def test_backup_of_another_pool_is_placed_by_its_snapshot_on_production(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, received: dict[str, int], latest: str | None
) -> None:
    """Production came back to its pool by `zfs receive`: its groups say whether the local set was made afterwards."""
    produce(monkeypatch, POOL + 1, {LOCAL, *received})
    made = [Snapshot("tank/db", f"zsnapdb-{name}", GUIDS[name], group) for name, group in received.items()]
    there = {one.full_name: one for one in made}
    points = snapshots.SendPoints({one.guid: one.full_name for one in made}, {})
    monkeypatch.setattr(snapshots, "send_points_there", lambda places: dict.fromkeys(places, points))
    monkeypatch.setattr(snapshots, "describe", lambda names: [there[name] for name in names])
    here = SnapshotSet(LOCAL, {"data": Snapshot("tank/db", f"zsnapdb-{LOCAL}", GUIDS[LOCAL], 20)})
    local = CloneSource(SourceKind.BACKUP, here, origin_in(manifest()))
    newest = source_lookup._newest_stored(instance, instance.open_repository(), local, accepts_older=False)
    assert newest == latest


@pytest.mark.parametrize("pool", [POOL, POOL + 1])
@pytest.mark.parametrize("later", [(), ("20261119T100000Z-0004",)])
@pytest.mark.parametrize("are_properties_sent", [True, False])
def test_received_set_after_the_backup_lets_no_older_backup_be_the_latest(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, pool: int, later: tuple[str, ...], *, are_properties_sent: bool
) -> None:
    """`zfs send -R` moved production: its snapshots have other groups, and received properties are not local."""
    produce(monkeypatch, pool, [NEWEST])
    made = [
        Snapshot("tank/db", f"zsnapdb-{name}", GUIDS.get(name, 9), 50 + i) for i, name in enumerate((NEWEST, *later))
    ]
    sent = {one: dict(zip(MARKS, (one.name.removeprefix("zsnapdb-"), "main", "local"), strict=True)) for one in made}
    owned = [
        OwnedSnapshot(one, {"userrefs": "0", **(sent[one] if are_properties_sent else dict.fromkeys(MARKS, "-"))})
        for one in made
    ]
    points = snapshots.SendPoints({one.guid: one.full_name for one in made}, {})
    monkeypatch.setattr(snapshots, "send_points_there", lambda places: dict.fromkeys(places, points))
    monkeypatch.setattr(snapshots, "describe", lambda names: [one for one in made if one.full_name in names])
    monkeypatch.setattr(snapshots, "list_owned", lambda *_: owned)
    repository = instance.open_repository()
    if later:
        with pytest.raises(PreflightError, match=f"received.* tank/db@zsnapdb-{later[0]}"):
            source_lookup._newest_stored(instance, repository, None, accepts_older=False)
    assert source_lookup._newest_stored(instance, repository, None, accepts_older=True) == NEWEST


@CASES
def test_restore_after_rollback_is_of_production(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, pool: int, on_production: Collection[str], latest: str | None
) -> None:
    produce(monkeypatch, pool, on_production)
    repository = instance.open_repository()
    if latest is None:
        with pytest.raises(AbandonedHistoryError, match="as after `zfs rollback`"):
            read(instance, repository)
        return
    known = read(instance, repository)
    assert known.choosable()[-1].backup_id == latest
    assert [NEWEST in note for note in known.notes_on_newer(latest)] == ([True] if latest == MIDDLE else [])
    explicit = replace(known, target=AtBackup(NEWEST))
    assert NEWEST in {backup.backup_id for backup in explicit.choosable()}


def test_status_after_rollback_counts_no_abandoned_backup(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(monkeypatch, POOL, {LOCAL, MIDDLE})
    stored = recovery_coverage.read(instance, instance.open_repository())
    assert stored.current[-1].backup_id == MIDDLE
