"""A command that root runs for somebody changes the clone that was meant, whatever has its name when its turn comes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import UnknownNameError, UsageError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import branches, commits, destroy, lifecycle, locks, reset
from zsnapdb.jobs.clone.expected_clone import GUID_VARIABLE, MEANT_VARIABLE, ExpectedClone

BASE = f"{SOURCE}@zsnapdb-20261120T100000Z-0001"
MINE, THEIRS = "ci:shop/web", "user:eve@example.org"
FIRST, LATER = "4711", "4712"
SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))
Job = Callable[[], object]
JOBS: dict[str, Job] = {
    "destroy": lambda: destroy.destroy(SETTINGS, THIS_HOST, "mine"),
    "extend": lambda: lifecycle.extend(SETTINGS, THIS_HOST, "mine", 60.0).run(),
    "protect": lambda: lifecycle.protect(SETTINGS, THIS_HOST, "mine", 60.0).run(),
    "commit": lambda: commits.commit(SETTINGS, THIS_HOST, "mine", "theirs").run(),
    "reset": lambda: reset.reset(SETTINGS, THIS_HOST, "mine", None, SILENT),
    "branch": lambda: branches.create(SETTINGS, THIS_HOST, "mine", "theirs").run(),
    "switch": lambda: branches.switch(SETTINGS, THIS_HOST, "mine", "theirs", SILENT).run(),
    "delete": lambda: branches.delete(SETTINGS, THIS_HOST, "mine", "theirs").run(),
    "rename": lambda: lifecycle.rename(SETTINGS, THIS_HOST, "mine", "other"),
}
LOOKS: dict[str, Job] = {
    "logs": lambda: lifecycle.tail(SETTINGS, THIS_HOST, "mine", 10),
    "login": lambda: lifecycle.login(SETTINGS, THIS_HOST, "mine"),
    "beat": lambda: lifecycle.beat(SETTINGS, THIS_HOST, "mine"),
    "branches": lambda: branches.listing(SETTINGS, THIS_HOST, "mine"),
    "plan": lambda: destroy.plan(SETTINGS, THIS_HOST, "mine"),
}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    pool.snapshot(BASE)
    pool.clone("mine", BASE, owner=MINE, guid=FIRST)
    return pool


@pytest.fixture
def replaced(pool: ClonePool, monkeypatch: pytest.MonkeyPatch) -> ClonePool:
    """While the command waits for the lock of the clone, that goes, and somebody else makes one of its name."""
    lock = locks.lock_clone

    @contextlib.contextmanager
    def late(name: str) -> Iterator[None]:
        taken_by_another(pool)
        with lock(name):
            yield

    monkeypatch.setattr("zsnapdb.jobs.clone.locks.lock_clone", late)
    return pool


def taken_by_another(pool: ClonePool, owner: str = THEIRS) -> None:
    pool.clone("mine", BASE, owner=owner, guid=LATER)


def told(monkeypatch: pytest.MonkeyPatch, meant: ExpectedClone) -> None:
    for name, value in meant.variables().items():
        monkeypatch.setenv(name, value)


def state(pool: ClonePool) -> dict[str, dict[str, str]]:
    return {name: dict(thing.properties) for name, thing in pool.things.items()}


def test_a_command_that_is_told_no_clone_destroys_the_one_that_took_the_name(replaced: ClonePool) -> None:
    """Why it is told: this was the attack."""
    JOBS["destroy"]()
    assert f"{HOME}/mine" not in replaced.things


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "meant",
    [ExpectedClone(owner=MINE, id="mine", guid=FIRST), ExpectedClone(owner=MINE)],
    ids=["helper", "zsnapdb-clone"],
)
def test_the_clone_of_another_that_took_the_name_stays_as_it_is(
    replaced: ClonePool, monkeypatch: pytest.MonkeyPatch, name: str, meant: ExpectedClone
) -> None:
    told(monkeypatch, meant)
    with pytest.raises(UnknownNameError) as refused:
        JOBS[name]()
    taken_by_another(replaced)
    assert (str(refused.value.message), replaced.commands) == ("there is no clone mine", [])


@pytest.mark.parametrize("name", JOBS)
def test_verb_with_the_guid_of_a_clone_spares_a_later_one(
    replaced: ClonePool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(GUID_VARIABLE, FIRST)
    with pytest.raises(UnknownNameError, match="there is no clone mine"):
        JOBS[name]()
    assert replaced.commands == []


@pytest.mark.parametrize("name", LOOKS)
def test_look_with_the_guid_of_a_clone_ignores_a_later_one(
    pool: ClonePool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(GUID_VARIABLE, FIRST)
    taken_by_another(pool)
    with pytest.raises(UnknownNameError, match="there is no clone mine"):
        LOOKS[name]()


def test_a_later_clone_of_the_same_person_is_another_one(replaced: ClonePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.THEIRS", MINE)
    told(monkeypatch, ExpectedClone(owner=MINE, id="mine", guid=FIRST))
    with pytest.raises(UnknownNameError):
        JOBS["destroy"]()
    assert f"{HOME}/mine" in replaced.things


@pytest.mark.parametrize("name", LOOKS)
def test_what_only_looks_tells_nothing_of_the_clone_of_another(
    pool: ClonePool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    told(monkeypatch, ExpectedClone(owner=MINE))
    taken_by_another(pool)
    with pytest.raises(UnknownNameError, match="there is no clone mine"):
        LOOKS[name]()


@pytest.mark.parametrize("owner", [MINE, "unix:ada", "ada"])
def test_the_clone_that_is_meant_is_changed(pool: ClonePool, monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    pool.clone("mine", BASE, owner=owner.removeprefix("unix:"), guid=FIRST)
    told(monkeypatch, ExpectedClone(owner=owner, id="mine", guid=FIRST))
    assert lifecycle.protect(SETTINGS, THIS_HOST, "mine", 60.0).run().lease.protected_until is not None
    assert len(destroy.destroy(SETTINGS, THIS_HOST, "mine")) == 1


@pytest.mark.parametrize("text", ["", "ada", "{}", "[]", '{"owner": "ada", "also": 1}', '{"owner": null}'])
def test_a_variable_that_names_no_clone_is_refused_and_never_taken_for_any(
    pool: ClonePool, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    before = state(pool)
    monkeypatch.setenv(MEANT_VARIABLE, text)
    for job in JOBS.values():
        with pytest.raises(UsageError, match="does not name a clone"):
            job()
    assert state(pool) == before


def test_a_clone_that_a_command_makes_for_itself_goes_although_another_is_meant(
    pool: ClonePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two states of a clone are compared on two clones, for somebody who may destroy neither by name."""
    pool.clone("own-1", BASE, owner="zsnapdb", guid=FIRST)
    told(monkeypatch, ExpectedClone(owner=MINE, id="mine", guid=FIRST))
    with pytest.raises(UnknownNameError):
        destroy.destroy(SETTINGS, THIS_HOST, "own-1")
    destroy.destroy_own(SETTINGS, THIS_HOST, "own-1")
    destroy.destroy_own(SETTINGS, THIS_HOST, "own-1")
    assert (f"{HOME}/own-1" in pool.things, f"{HOME}/mine" in pool.things) == (False, True)
