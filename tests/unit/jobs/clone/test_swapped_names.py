"""After a swap a clone lies in another dataset: its label and id lead there, and nobody reaches what it had before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from operator import itemgetter
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import ConsistencyError, ExistsError, PreflightError, UnknownNameError
from zsnapdb.config.settings import CloneSettings, Settings, parse
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, destroy, reaper, run_results
from zsnapdb.jobs.clone.clone_info import CloneClaim
from zsnapdb.jobs.clone.reset import _objection, _of_nobody, _of_user
from zsnapdb.jobs.clone.sources import production_history
from zsnapdb.jobs.dataset_copies.catalogue import Properties
from zsnapdb.planning.clone.lease import LeaseVerdict
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.zfs import datasets

GIB = 1 << 30
SET = "20261120T100000Z-0001"


@pytest.fixture
def settings() -> Settings:
    return Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@pytest.fixture
def swapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings) -> ClonePool:
    """The clone `dev` of ada, that was made as the dataset `dev`, was reset by a swap for the slot `main-x`."""
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    base = pool.snapshot(f"{SOURCE}@zsnapdb-{SET}")
    pool.clone("dev", base, address="23170", protected="2026-12-01T00:00:00Z", heartbeat="60")
    pool.clone("main-x", base, pool="waits", owner="the pool", port="23071")
    for number, name in enumerate(("dev", "main-x")):
        pool.things[f"{HOME}/{name}"].txg = 100 + number
    user, slot = (catalogue.of_dataset(settings, THIS_HOST, name) for name in ("dev", "main-x"))

    def put(dataset: str, values: Mapping[str, str]) -> None:
        pool.things[dataset].properties.update({key: str(value) for key, value in values.items()})

    put(slot.top, _of_user(THIS_HOST, user))
    put(user.top, _of_nobody(slot))
    return pool


def test_label_id_and_all_that_is_the_holders_lead_to_the_new_dataset(swapped: ClonePool, settings: Settings) -> None:
    found = catalogue.find(settings, THIS_HOST, "dev")
    assert (found.name, found.label, found.id, found.owner) == ("main-x", "dev", "dev", "ada")
    assert (found.kept_port, found.port, found.pool, found.guid) == (23170, 23071, PoolMark.HANDED_OUT, "100")
    assert (found.lease.protected_until is not None, found.lease.heartbeat is not None) == (True, True)
    with catalogue.locked_clone(settings, THIS_HOST, "dev") as held:
        assert held.name == "main-x"
    assert run_results.guids(settings, THIS_HOST, "dev") == ("100",)


def test_what_the_holder_had_is_nobodys_and_not_called_as_the_clone(swapped: ClonePool, settings: Settings) -> None:
    old = catalogue.find(settings, THIS_HOST, "main-x")
    assert (old.name, old.owner, old.pool, old.kept_port) == ("dev", "the pool", PoolMark.REPLACED, None)
    assert (old.lease.protected_until, old.lease.heartbeat) == (None, None)
    with pytest.raises(PreflightError, match="replaced by a reset"):
        catalogue.ready(settings, THIS_HOST, "main-x")
    catalogue.require_owner(settings, THIS_HOST, "dev", "ada")
    with pytest.raises(UnknownNameError):
        catalogue.require_owner(settings, THIS_HOST, "main-x", "ada")
    outcomes = {one.name: one.verdict for one in reaper.plan(settings, replace(THIS_HOST))}
    assert outcomes["dev"] is LeaseVerdict.REAP


def test_destroying_by_the_name_takes_the_clone_and_what_lay_there_which_is_nobodys(
    swapped: ClonePool, settings: Settings
) -> None:
    destroy.destroy(settings, THIS_HOST, "dev")
    assert f"{HOME}/main-x" not in swapped.things
    assert f"{HOME}/dev" not in swapped.things
    with pytest.raises(UnknownNameError):
        catalogue.find(settings, THIS_HOST, "dev")


def test_label_that_another_program_set_twice_is_refused(swapped: ClonePool, settings: Settings) -> None:
    swapped.clone("third", swapped.snapshot(f"{SOURCE}@zsnapdb-{SET}"), label="dev", port="23072")
    with pytest.raises(ConsistencyError, match="2 clones have the name dev"):
        catalogue.find(settings, THIS_HOST, "dev")


def test_no_other_clone_gets_a_name_that_is_a_label_an_id_or_a_dataset(swapped: ClonePool, settings: Settings) -> None:
    known = catalogue.claims(settings).copies
    for name in ("dev", "main-x"):
        with pytest.raises(ExistsError):
            catalogue.refuse_label(known, name)


def test_what_a_clone_keeps_from_others_is_known_without_a_look_at_its_data(
    swapped: ClonePool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with hundreds of clones has many more datasets; ZFS needs time for each that it names."""
    everything = catalogue.known_clones(settings, THIS_HOST)
    names, read = [each.name for each in fields(CloneClaim)], set[str]()
    children = datasets.children

    def watched(dataset: str, names: Sequence[str], depth: int | None = None) -> Mapping[str, Properties]:
        seen = children(dataset, names, depth)
        read.update(seen)
        return seen

    monkeypatch.setattr(datasets, "children", watched)
    listed = catalogue.claims(settings)
    claims = [{each: getattr(one, each) for each in names} for one in listed.copies]
    infos = [{each: getattr(one, each) for each in names} for one in everything.copies]
    assert sorted(claims, key=itemgetter("name")) == sorted(infos, key=itemgetter("name"))
    assert read == {HOME, f"{HOME}/dev", f"{HOME}/main-x"}
    swapped.things[f"{HOME}/dev"].properties["zsnapdb:port"] = "70000"
    assert [one.name for one in catalogue.claims(settings).unreadable] == ["dev"]


def test_no_slot_is_spoilt_for_a_clone_that_may_have_less_than_the_slot_has(swapped: ClonePool) -> None:
    """Else each reset of a small clone took one slot after another out of the pool, and replaced the data."""
    configured = parse(
        '[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\npool = { size = 1 }\n'
        f'[clones]\ndataset = "{HOME}"\n',
        "the test",
    )
    user = replace(catalogue.find(configured, THIS_HOST, "dev"), quota=GIB, original_key="a1")
    history = production_history(Instance.of(configured, "main"), user.origin)
    slot = replace(user, name="other", pool=PoolMark.WAITS, pid=7, history=history)
    for own, expected in ((GIB // 2, None), (GIB - 1, "it has too much of its own already")):
        assert _objection(configured, THIS_HOST, user, replace(slot, own_bytes=own)) == expected
