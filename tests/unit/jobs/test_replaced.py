"""Replaced datasets are told by their properties and their names, and are never taken from somebody who uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from zsnapdb.base.domain_types import Snapshot
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import reaper
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.host.dataset_use_checks import ReplacedServer
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.planning.clone.lease import FOREVER, LeaseVerdict
from zsnapdb.zfs import datasets, destruction, mounts, snapshots
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.mounts import ForeignMount
from zsnapdb.zfs.snapshots import SnapshotUse

ID = "20261120T093000Z-5e75"
OLD = f"tank/mysql-replaced-{ID.lower()}"
AT = "2026-11-20T10:00:00Z"


def instance() -> Instance:
    settings = InstanceSettings(
        socket=Path("/s"), repository="r", volumes={"parent": "tank/mysql", "data": "tank/mysql/data"}
    )
    return Instance("main", settings, RepositorySettings(url="file:///r"))


class Pool:
    """Datasets with the properties of replaced ones, by name; values are set locally."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, at: str = AT) -> None:
        self.names = names
        self.at = at
        self.mounted: set[str] = set()
        self.clones: dict[str, str] = {}
        self.destroyed: list[str] = []
        self.gone: set[str] = set()
        self.written: dict[str, str] = {}
        self.elsewhere: list[ForeignMount] = []
        self.is_served = True
        monkeypatch.setattr(datasets, "exists", lambda _name: True)
        monkeypatch.setattr(datasets, "children", self.children)
        monkeypatch.setattr(datasets, "properties_of", self.properties_of)
        monkeypatch.setattr(snapshots, "list_owned", lambda _dataset, _names: [])
        monkeypatch.setattr(
            snapshots,
            "uses",
            lambda names: {f"{n}@s": SnapshotUse(0, tuple(self.clones.get(n, "").split()), 0) for n in names},
        )
        monkeypatch.setattr(
            destruction, "destroy_datasets", lambda names, *_marks, **_how: self.destroyed.extend(names)
        )

    def children(self, dataset: str, names: list[str], depth: int | None = None) -> dict[str, dict[str, Property]]:
        below = [
            name
            for name in self.names
            if name == dataset
            or (name.startswith(dataset + "/") and (depth is None or name.count("/") - dataset.count("/") <= depth))
        ]
        return {name: {key: self.value(name, key) for key in names} for name in below}

    def value(self, name: str, key: str) -> Property:
        role = "data" if name.endswith("/data") else "parent"
        known = {"used": "7", "type": "filesystem", "zsnapdb:replaced": ID, "zsnapdb:replaced-instance": "main"}
        return Property({**known, "zsnapdb:replaced-role": role, "zsnapdb:replaced-at": self.at}[key], "local")

    def written_on(self, name: str, keys: list[str]) -> dict[str, Property]:
        return {key: Property(self.written.get(name, "0"), "-") for key in keys}

    def properties_of(self, names: list[str], _keys: list[str]) -> dict[str, dict[str, Property]]:
        return {name: {"mounted": Property("yes" if name in self.mounted else "no", "-")} for name in names}


def test_the_datasets_that_a_restore_replaced_are_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    Pool(monkeypatch, OLD, f"{OLD}/data")
    (server,) = dataset_use_checks.listing(instance())
    assert server.datasets == {"parent": OLD, "data": f"{OLD}/data"}
    assert (server.restore_id, server.used) == (ID, 7)
    assert server.expires(3600.0) == datetime(2026, 11, 20, 11, tzinfo=UTC)


def test_datasets_that_were_put_back_in_their_place_are_no_replaced_server(monkeypatch: pytest.MonkeyPatch) -> None:
    Pool(monkeypatch, "tank/mysql", "tank/mysql/data")
    assert dataset_use_checks.listing(instance()) == []


def test_server_replaced_while_the_clock_was_ahead_counts_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(datasets, "set_properties", written.__setitem__)
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    settled = dataset_use_checks.settle(replace(server(), replaced=datetime(2029, 1, 1, tzinfo=UTC)), now)
    assert settled.expires(3600.0) == datetime(2026, 11, 20, 13, tzinfo=UTC)
    assert written == {name: {"zsnapdb:replaced-at": "2026-11-20T12:00:00Z"} for name in (OLD, f"{OLD}/data")}


@pytest.mark.parametrize(("at", "is_settled"), [(datetime(2029, 1, 1, tzinfo=UTC), True), (FOREVER, False)])
def test_reap_settles_a_wrong_time_and_leaves_one_that_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch, at: datetime, is_settled: bool
) -> None:
    written: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(datasets, "set_properties", written.__setitem__)
    text = '[instance.main]\nsocket = "/s"\nrepository = "r"\n[repository.r]\nurl = "file:///r"\n'
    settings = parse(text + '[restore]\nkeep_replaced = "1h"\n', "test")
    now = RemovalTime(datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC))
    outcome = reaper._sweep_replaced_server(settings, replace(server(), replaced=at), now, act=True)
    assert (outcome.verdict, bool(written)) == (LeaseVerdict.KEEP, is_settled)


def test_a_time_that_cannot_be_read_keeps_the_datasets_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    Pool(monkeypatch, OLD, f"{OLD}/data", at="yesterday")
    (server,) = dataset_use_checks.listing(instance())
    assert server.expires(1.0) is None


def server() -> ReplacedServer:
    return ReplacedServer(ID, "main", datetime(2026, 11, 20, tzinfo=UTC), {"parent": OLD, "data": f"{OLD}/data"}, 7, {})


SEAL = f"zsnapdb-{ID}"


def sealed() -> ReplacedServer:
    one = server()
    marks = {role: Snapshot(name, SEAL, at, 5) for at, (role, name) in enumerate(one.datasets.items())}
    return replace(one, sealed=marks)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool with a replaced server, and a server that runs from the datasets in its place."""
    made = Pool(monkeypatch, OLD, f"{OLD}/data")
    monkeypatch.setattr(
        dataset_use_checks, "servers_on", lambda names: {7: "tank/mysql/data"} if made.is_served else {}
    )
    monkeypatch.setattr(mounts, "mounted_elsewhere", lambda _names: made.elsewhere)
    monkeypatch.setattr(datasets, "properties", made.written_on)
    monkeypatch.setattr(datasets, "exists", lambda name: name not in made.gone)
    return made


def test_a_replaced_server_that_nobody_uses_is_removed(pool: Pool) -> None:
    dataset_use_checks.remove(sealed(), {})
    assert sorted(pool.destroyed) == [OLD, f"{OLD}/data"]


def test_what_is_mounted_or_has_clones_is_never_removed(pool: Pool) -> None:
    pool.mounted.add(f"{OLD}/data")
    with pytest.raises(PreflightError, match="is mounted"):
        dataset_use_checks.remove(sealed(), {})
    pool.mounted.clear()
    pool.clones[f"{OLD}/data"] = "tank/zsnapdb/clones/later"
    with pytest.raises(PreflightError, match="clones/later depend on"):
        dataset_use_checks.remove(sealed(), {})
    assert pool.destroyed == []


def _without_place(pool: Pool) -> None:
    pool.gone.add("tank/mysql/data")


def _without_server(pool: Pool) -> None:
    pool.is_served = False


def _written(pool: Pool) -> None:
    pool.written[f"{OLD}/data"] = "8192"


def _mounted_in_a_container(pool: Pool) -> None:
    pool.elsewhere = [ForeignMount(OLD, "/m", 99, follows=False)]


def _with_a_stranger(pool: Pool) -> None:
    pool.names = (*pool.names, f"{OLD}/dumps")


REASONS = [
    (_without_place, "may be the only copy"),
    (_without_server, "no server runs from"),
    (_written, "was written to since it was replaced: 8192 bytes"),
    (_mounted_in_a_container, "namespace of process 99"),
    (_with_a_stranger, "dumps lies below a replaced dataset"),
]


@pytest.mark.parametrize(("spoil", "reason"), REASONS)
def test_nothing_is_removed_that_may_be_the_newest_or_that_somebody_uses(
    pool: Pool, spoil: Callable[[Pool], None], reason: str
) -> None:
    spoil(pool)
    with pytest.raises(PreflightError, match=reason):
        dataset_use_checks.remove(sealed(), {})
    assert pool.destroyed == []


def test_nothing_is_removed_whose_last_state_has_no_snapshot(pool: Pool) -> None:
    with pytest.raises(PreflightError, match="no snapshot of its last state"):
        dataset_use_checks.remove(server(), {})
    assert pool.destroyed == []


@pytest.mark.parametrize("name", [OLD, "tank/mysql", "tank/mysql/data"])
def test_nothing_is_removed_that_belongs_to_a_restore_under_way(pool: Pool, name: str) -> None:
    with pytest.raises(PreflightError, match="belongs to an unfinished restore of main"):
        dataset_use_checks.remove(sealed(), {name: "main"})
    assert pool.destroyed == []
