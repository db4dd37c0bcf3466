"""After `zfs rollback`, `latest` is the newest state of production, and no backup of the abandoned state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from tests.unit.support.manifests import manifest
from tests.unit.support.planning_host import PlanningHost
from zsnapdb.base.model import Snapshot, SnapshotSet
from zsnapdb.jobs.clone import source_lookup
from zsnapdb.jobs.clone.sources import CloneSource, origin_in
from zsnapdb.planning.clone.source_kind import SourceKind
from zsnapdb.zfs import datasets, snapshots, version
from zsnapdb.zfs.snapshots import SendPoints

LOCAL, MIDDLE, NEWEST = "20261119T100000Z-0001", "20261119T100000Z-0002", "20261119T100000Z-0003"
GUIDS = {LOCAL: 1, MIDDLE: 2, NEWEST: 3}
POOL = manifest().pool_guid


@pytest.mark.parametrize(
    ("pool", "snapshots_here", "bookmarks_here", "origin", "latest"),
    [
        (POOL, {LOCAL}, {LOCAL, MIDDLE, NEWEST}, None, NEWEST),
        (POOL, {LOCAL, NEWEST}, {LOCAL}, None, NEWEST),
        (POOL, {LOCAL}, {LOCAL}, NEWEST, NEWEST),
        (POOL, {LOCAL}, {LOCAL}, None, None),
        (POOL, {LOCAL}, {LOCAL, MIDDLE}, None, MIDDLE),
        (POOL + 1, {LOCAL}, {LOCAL}, None, NEWEST),
    ],
)
def test_latest_after_rollback_is_a_state_of_production(
    host: PlanningHost,
    monkeypatch: pytest.MonkeyPatch,
    pool: int,
    snapshots_here: Collection[str],
    bookmarks_here: Collection[str],
    origin: str | None,
    latest: str | None,
) -> None:
    repository = host.instance.open_repository()
    for name in (MIDDLE, NEWEST):
        made = manifest(name)
        volumes = tuple(volume.model_copy(update={"guid": GUIDS[name], "from_guid": None}) for volume in made.volumes)
        update = {"volumes": volumes, "createtxg": GUIDS[name], "repository_id": repository.id}
        repository.commit(made.model_copy(update=update))
    here = SnapshotSet(LOCAL, {"data": Snapshot("tank/db", f"zsnapdb-{LOCAL}", GUIDS[LOCAL], GUIDS[LOCAL])})
    local = CloneSource(SourceKind.BACKUP, here, origin_in(manifest()))
    points = SendPoints(*({GUIDS[name]: name for name in names} for names in (snapshots_here, bookmarks_here)))

    def own_points(places: Collection[str]) -> Mapping[str, SendPoints]:
        return dict.fromkeys(places, points)

    monkeypatch.setattr(version, "pool_guid", lambda _: pool)
    monkeypatch.setattr(datasets, "origin_guid", lambda _: GUIDS.get(origin or ""))
    monkeypatch.setattr(snapshots, "send_points", own_points)
    assert (
        source_lookup._newest_stored(host.instance, repository, local, (MIDDLE, NEWEST), accepts_older=False) == latest
    )
