"""A prepared form is used for the data that it was made of, whatever its set is called."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.unit.support.clone_pool import HOME, ClonePool, Thing, origin
from zsnapdb.base.domain_types import Snapshot, SnapshotSet
from zsnapdb.base.errors import BusyError, UnknownNameError
from zsnapdb.config.settings import CloneSettings, Settings, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import cached_sets, locks
from zsnapdb.jobs.clone.cached_sets import name_of, prepared_form
from zsnapdb.jobs.clone.set_preparation import remove_forms
from zsnapdb.jobs.clone.sources import CloneSource, production_history
from zsnapdb.planning.clone.lease import SourceKind

ABOVE = "tank/zsnapdb/prepared"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    pool.things[ABOVE] = Thing()
    return pool


def daily(guid: int) -> CloneSource:
    snapshot = Snapshot("tank/mysql", "daily", guid, guid)
    return CloneSource(SourceKind.SNAPSHOT, SnapshotSet("daily", {"data": snapshot}), origin())


def prepare(pool: ClonePool, source: CloneSource, name: str, above: str = ABOVE) -> str:
    facts = {
        "kept": name,
        "key": source.key,
        "phase": "ready",
        "instance": "main",
        "backup": source.set.backup_id,
        "source": source.kind,
        "origin": source.origin.encode(),
        "used": "2026-11-22T00:00:00Z",
        "created": "2026-11-22T00:00:00Z",
        "point": "-",
    }
    anchor = f"{above}/{name}"
    pool.things[anchor] = Thing({f"zsnapdb:{key}": value for key, value in facts.items()})
    pool.things[f"{anchor}/c"] = Thing({"zsnapdb:kept": name, "zsnapdb:role": "data", "mountpoint": "/nowhere"})
    return pool.snapshot(f"{anchor}/c@zsnapdb-{source.set.backup_id}")


def test_prepared_form_of_same_guids_is_used(pool: ClonePool) -> None:
    source = daily(7)
    made = prepare(pool, source, name_of(source, ""))
    form = prepared_form(HOME, source, "")
    assert (form.is_prepared, form.set.snapshots["data"].full_name) == (True, made)
    assert form.key == source.key
    assert name_of(form, "") == name_of(source, "")


@pytest.mark.parametrize("recorded", [daily(7), daily(9)])
def test_prepared_form_of_other_guids_is_not_used(pool: ClonePool, recorded: CloneSource) -> None:
    source = daily(8)
    # Also where a digest of eight digits is that of other data.
    prepare(pool, recorded, name_of(source, ""))
    prepare(pool, recorded, "daily")
    assert prepared_form(HOME, source, "") is source


def test_prepared_form_of_a_commit_is_no_form_of_a_set(pool: ClonePool) -> None:
    source = daily(7)
    prepare(pool, source, name_of(source, ""))
    assert cached_sets.prepared_commits(HOME, ["daily"]) == []


ID = "20261120T100000Z-0001"


def receive(pool: ClonePool, name: str) -> CloneSource:
    """Return a received set whose anchor has that name, with the GUIDs that ZFS gave its snapshots."""
    nothing = CloneSource(SourceKind.REPOSITORY, SnapshotSet(ID, {}), origin())
    made = prepare(pool, nothing, name, "tank/zsnapdb/received")
    txg = pool.things[made].txg
    received = Snapshot(made.partition("@")[0], f"zsnapdb-{ID}", txg, txg)
    return CloneSource(SourceKind.REPOSITORY, SnapshotSet(ID, {"data": received}), origin())


def test_received_sets_of_two_instances_with_one_id_are_two_sets(pool: ClonePool) -> None:
    """The second one is neither used for the first instance nor in the way of its own set."""
    pool.things["tank/zsnapdb/received"] = Thing()
    old = receive(pool, ID)
    names = [cached_sets.received_name(ID, {"data": guid}) for guid in (old.guids["data"] + 1, 77)]
    new = receive(pool, names[0])
    assert names[0] == cached_sets.received_name(ID, new.guids) != names[1]
    for source in (old, new):
        found = cached_sets.find_received(HOME, ID, source.guids)
        assert found is not None
        assert found.names == source.names
    assert cached_sets.find_received(HOME, ID, {"data": 77}) is None


def test_use_of_a_received_set_is_recorded_on_its_own_anchor(pool: ClonePool) -> None:
    pool.things["tank/zsnapdb/received"] = Thing()
    receive(pool, ID)
    name = cached_sets.received_name(ID, {"data": pool.txg + 1})
    new = receive(pool, name)
    settings = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))
    cached_sets.mark_used(settings, HOME, new, datetime(2026, 12, 1, tzinfo=UTC))
    used = {one: pool.things[f"tank/zsnapdb/received/{one}"].properties["zsnapdb:used"] for one in (ID, name)}
    assert used == {ID: "2026-11-22T00:00:00Z", name: "2026-12-01T00:00:00Z"}


def instance(text: str = "") -> Instance:
    settings = f'[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\n{text}\n'
    return Instance.of(parse(settings, "the test"), "main")


def test_history_changes_with_the_dataset_and_not_with_its_snapshots(pool: ClonePool) -> None:
    before = production_history(instance(), origin())
    pool.snapshot("tank/mysql@later")
    assert production_history(instance(), origin()) == before
    pool.things["tank/mysql"].txg = 99
    after = production_history(instance(), origin())
    del pool.things["tank/mysql"]
    assert len({before, after, production_history(instance(), origin())}) == 3


@pytest.mark.parametrize(
    "text", ['volumes = { data = "tank/other" }', 'socket = "/run/other.sock"', 'host = "db2"', "port = 3307"]
)
def test_history_changes_with_the_server_that_the_configuration_names(pool: ClonePool, text: str) -> None:
    assert production_history(instance(text), origin()) != production_history(instance(), origin())
    same = instance('volumes = { data = "tank/mysql" }')
    assert production_history(same, origin()) == production_history(instance(), origin())


def test_remove_destroys_a_received_set_only_if_it_is_named(pool: ClonePool) -> None:
    """A full pool needs the space of received sets too. The same command run twice must not destroy them."""
    source = daily(7)
    name = name_of(source, "")
    above = "tank/zsnapdb/received"
    pool.things[above] = Thing()
    prepare(pool, source, name)
    prepare(pool, source, name, above)
    settings, main = (
        Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME)),
        instance('volumes = { data = "tank/mysql" }'),
    )
    for kind, requested in (("prepared", "daily"), ("received", f"received/{name}")):
        assert [one.kind for one in remove_forms(settings, main, requested)] == [kind]
        assert f"tank/zsnapdb/{kind}/{name}" not in pool.things
        with pytest.raises(UnknownNameError):
            remove_forms(settings, main, requested)


def test_remove_of_received_set_waits_for_its_clones(pool: ClonePool) -> None:
    source = daily(7)
    pool.things["tank/zsnapdb/received"] = Thing()
    prepare(pool, source, "daily", "tank/zsnapdb/received")
    settings = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))
    with locks.using_received("main"), pytest.raises(BusyError, match="is being made"):
        remove_forms(settings, instance(), "received/daily")
    assert "tank/zsnapdb/received/daily" in pool.things
