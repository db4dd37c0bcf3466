"""Readers of a server that was put back are noted before the exchange, and named until somebody rebuilt them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.stored_backups import Site
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError, ServerError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings, Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host import affected_replicas
from zsnapdb.mysql import binlog_dump_clients as asked
from zsnapdb.mysql.binlog_dump_clients import ReplicaIdentity
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.restore.plan import RestoreLayout, RestorePlan, RestorePoint
from zsnapdb.planning.restore.replica_checks import ObservedReaders, RegisteredReplica
from zsnapdb.planning.restore.steps import LeaveStopped, Promote, PromotePart
from zsnapdb.zfs import datasets
from zsnapdb.zfs.datasets import Property

ID, LATER = "20261120T120000Z-0001", "20261121T120000Z-0001"
UUID, SOURCE = "bc4d710e-e87a-11f1-9a7c-618471ac0a2b", "428226cb-e87a-11f1-8d14-618472ad114a"
PLACES = {"data": "tank/mysql/data", "parent": "tank/mysql"}
ONE = ObservedReaders(
    connections=("replica@db2",), replicas=(RegisteredReplica(2, UUID, "db2", 3306),), written=f"{SOURCE}:1-14"
)


class World:
    """A server with given readers (None: it does not answer), and the restore whose datasets are in its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: ObservedReaders | None = ONE
        self.in_place: dict[str, Property] = {}
        self.gtids = [f"{SOURCE}:1-12"]
        """What the server has, then what the other instance has."""
        self.other = ReplicaIdentity(2, UUID, 3306)
        self.flavour = Flavour.MYSQL
        monkeypatch.setattr(Instance, "session", self.session)
        monkeypatch.setattr(affected_replicas, "serving", lambda _datadir: None)
        monkeypatch.setattr(asked, "observe_readers", lambda _session: self.seen)
        monkeypatch.setattr(asked, "executed_gtids", lambda _session: self.gtids.pop(0))
        monkeypatch.setattr(asked, "identity", lambda _session: self.other)
        monkeypatch.setattr(affected_replicas, "server_flavour", lambda _session: self.flavour)
        monkeypatch.setattr(datasets, "exists", lambda _name: True)
        monkeypatch.setattr(datasets, "properties_of", self.properties_of)

    def session(self, *, read_timeout: float = 60.0) -> Session:
        if self.seen is None:
            raise ServerError(f"no answer in {read_timeout} s", hint="")
        return AnsweringServer()

    def exchanged(self, restore: str, source: str = "local") -> None:
        self.in_place = {name: Property(restore, source) for name in PLACES.values()}

    def properties_of(self, names: Sequence[str], wanted: Sequence[str]) -> dict[str, dict[str, Property]]:
        return {name: dict.fromkeys(wanted, self.in_place.get(name, Property("-", "-"))) for name in names}


class AnsweringServer(Session):
    """A session of which nothing is asked."""

    def __init__(self) -> None:
        self.address = Address("zsnapdb", Path("/run/server.sock"))

    def close(self) -> None:
        """End it."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Site(tmp_path / "store").instance().with_volumes(PLACES)


def plan(restore: str = ID, *, takes_place: bool = True) -> RestorePlan:
    promoted = Promote(
        (PromotePart("data", "tank/r", "tank/mysql", "tank/mysql-old", "/d"),), (("tank/r", "tank/mysql"),), restore
    )
    return RestorePlan(
        restore_id=restore,
        instance="main",
        repository="0123",
        requested="latest",
        created=datetime(2026, 11, 20, 12, tzinfo=UTC),
        flavour=Flavour.MYSQL,
        server_version="8.4.3",
        server_id=1,
        server_uuid=SOURCE,
        variables={"datadir": "/var/lib/mysql/data"},
        backup_id=restore,
        point=RestorePoint(f"{SOURCE}:1-12", None, None, ()),
        layout=RestoreLayout("tank/r", {}, {}, "/mnt/r", {role: (place, "/d") for role, place in PLACES.items()}),
        steps=(promoted if takes_place else LeaveStopped(1),),
    )


ALONE = Settings(instance={}, repository={})
SECOND = Settings(
    instance={"second": InstanceSettings(socket=Path("/second.sock"), repository="r")},
    repository={"r": RepositorySettings(url="file:///r")},
)


def told(instance: Instance, settings: Settings = ALONE) -> list[str]:
    found = affected_replicas.remind(settings, instance)
    return [finding.detail for finding in found if finding.severity is Severity.WARNING]


def test_a_server_with_readers_is_not_replaced_and_nothing_is_noted(world: World, instance: Instance) -> None:
    (found,) = affected_replicas.examine(instance, plan())
    assert found.severity is Severity.UNFIT
    with pytest.raises(PreflightError, match="replica@db2"):
        affected_replicas.prepare(instance, plan())
    world.exchanged(ID)
    assert told(instance) == []


def test_a_restore_that_takes_no_place_has_nothing_to_do_with_readers(world: World, instance: Instance) -> None:
    assert affected_replicas.examine(instance, plan(takes_place=False)) == []
    affected_replicas.prepare(instance, plan(takes_place=False))
    assert world.in_place == {}


def test_readers_are_named_from_the_exchange_until_they_are_said_to_be_rebuilt(
    world: World, instance: Instance
) -> None:
    affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    assert told(instance) == [], "nothing was exchanged yet"
    world.exchanged(ID)
    (text,) = told(instance)
    assert UUID in text
    assert f"{SOURCE}:13-14" in text
    assert [reader.server_uuid for reader in affected_replicas.forget(instance)] == [UUID]
    world.gtids.append(f"{SOURCE}:1-12")
    assert told(instance) == []
    assert affected_replicas.forget(instance) == ()


def test_readers_stay_named_after_a_second_rewind_at_which_they_are_not_connected(
    world: World, instance: Instance
) -> None:
    affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    world.exchanged(ID)
    world.seen = ObservedReaders()
    affected_replicas.prepare(instance, plan(LATER))
    world.exchanged(LATER)
    (text,) = told(instance)
    assert UUID in text


@pytest.mark.parametrize(
    ("has", "named"), [(f"{SOURCE}:1-13", f"instance second, .* lacks: {SOURCE}:13$"), (f"{SOURCE}:1-12", None)]
)
def test_a_reader_that_is_an_instance_is_named_with_what_it_has_until_it_has_nothing_more(
    world: World, instance: Instance, has: str, named: str | None
) -> None:
    affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    world.exchanged(ID)
    world.gtids.append(has)
    found = told(instance, SECOND)
    assert [bool(re.search(named or "", text)) for text in found] == ([True] if named else [])


@pytest.mark.parametrize(
    ("other", "has", "is_named"),
    [
        (ReplicaIdentity(2, None, 3306), "0-1-14", True),
        (ReplicaIdentity(2, None, 3306), "0-1-12", False),
        (ReplicaIdentity(2, None, 3307), "0-1-14", False),
    ],
)
def test_a_replica_of_mariadb_that_is_not_ahead_is_not_taken_for_rebuilt(
    world: World, instance: Instance, other: ReplicaIdentity, has: str, is_named: bool
) -> None:
    """Its newest GTID alone is known. And a server_id stands for another server elsewhere."""
    world.seen = ObservedReaders(replicas=(RegisteredReplica(2, None, "db2", 3306),), written="0-1-14")
    affected_replicas.prepare(
        instance.rebuilding_replicas(True),
        replace(plan(), flavour=Flavour.MARIADB, point=RestorePoint("0-1-12", None, None, ())),
    )
    world.exchanged(ID)
    world.flavour, world.other, world.gtids = Flavour.MARIADB, other, ["0-1-12", has]
    (text,) = told(instance, SECOND)
    assert ("instance second" in text) == is_named


def test_an_inherited_or_mixed_property_of_a_dataset_makes_no_note_count(world: World, instance: Instance) -> None:
    affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    world.exchanged(ID, "inherited from tank")
    assert told(instance) == []
    world.exchanged(ID)
    world.in_place["tank/mysql"] = Property("-", "-")
    assert told(instance) == []


def test_a_server_that_is_down_is_replaced_and_what_was_noted_stays(world: World, instance: Instance) -> None:
    affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    world.seen = None
    affected_replicas.prepare(instance, plan())
    world.seen = ONE
    world.exchanged(ID)
    assert len(told(instance)) == 1


def test_a_server_that_runs_and_does_not_answer_hides_its_readers(
    world: World, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.seen = None
    monkeypatch.setattr(affected_replicas, "serving", lambda _datadir: object())
    with pytest.raises(PreflightError, match="cannot be seen whether replicas read"):
        affected_replicas.prepare(instance, plan())


def test_nothing_is_replaced_if_the_note_cannot_be_written(world: World, instance: Instance) -> None:
    instance.host.readers.parent.mkdir(parents=True, exist_ok=True)
    instance.host.readers.write_text("a file in the place of the folder")
    with pytest.raises(PreflightError):
        affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    assert world.in_place == {}


def test_a_note_that_cannot_be_read_is_told(world: World, instance: Instance) -> None:
    affected_replicas.prepare(instance.rebuilding_replicas(True), plan())
    world.exchanged(ID)
    (instance.host.readers / f"{instance.name}.json").write_text("{}}")
    (text,) = told(instance)
    assert "cannot be read" in text
