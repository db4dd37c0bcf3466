"""A clone's own commits never keep it; what depends on them is never lost; nothing foreign is touched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool, Thing
from zsnapdb.base.domain_types import SnapshotSet
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import CloneSettings, Settings, parse
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, data_replacement, destroy, kept_ports, locks, reaper, reset
from zsnapdb.jobs.clone.sources import CloneSource, commits
from zsnapdb.mysql.process.server import ServerProcess
from zsnapdb.planning.clone.lease import LeaseVerdict, SourceKind
from zsnapdb.report.clone.change import DestroyPlanView

FIRST = "20261120T100000Z-0001"
SECOND = "20261120T110000Z-0002"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    pool.snapshot(f"{SOURCE}@zsnapdb-{FIRST}")
    return pool


@pytest.fixture
def settings() -> Settings:
    return Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


def life(pool: ClonePool, expires: str = "2026-11-22T01:00:00Z") -> str:
    return pool.clone("life", f"{SOURCE}@zsnapdb-{FIRST}", expires=expires)


def left(pool: ClonePool) -> set[str]:
    return {name for name in pool.things if name.startswith(f"{HOME}/")}


def test_a_plain_commit_goes_with_its_clone_and_the_plan_says_so(pool: ClonePool, settings: Settings) -> None:
    pool.commit(life(pool), SECOND)
    plans = destroy.plan(settings, THIS_HOST, "life")
    assert f"commit {SECOND} goes with the clone" in DestroyPlanView(plans, "life").text()
    assert pool.commands == []
    destroy.destroy(settings, THIS_HOST, "life")
    assert left(pool) == set()


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the clones whose locks are held now; one that is not alone is an error of the test."""
    held: list[str] = []

    @contextlib.contextmanager
    def on_clone(name: str) -> Iterator[None]:
        held.append(name)
        try:
            yield
        finally:
            held.remove(name)

    monkeypatch.setattr(locks, "lock_clone", on_clone)
    return held


def test_a_clone_whose_label_is_the_name_of_a_dataset_that_is_no_clone_is_changed_under_its_own_lock(
    pool: ClonePool, settings: Settings, locked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the plan shows is what is destroyed; the dataset of others stays."""
    life(pool)
    pool.things[f"{HOME}/life"].properties["zsnapdb:label"] = "other"
    pool.things[f"{HOME}/other"] = Thing()
    with catalogue.locked_clone(settings, THIS_HOST, "other") as info:
        assert (info.name, locked) == ("life", ["life"])
    with locks.lock_clone("other"):
        assert destroy.destroy_locked(settings, THIS_HOST, "other") == [], "the lock of another clone is not enough"
    assert pool.commands == []
    (planned,) = destroy.plan(settings, THIS_HOST, "other")
    removed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(destroy, "remove_all", lambda host, top, name, *_: removed.append((name, [*locked])))
    (gone,) = destroy.destroy(settings, THIS_HOST, "other")
    assert (gone.info.name, removed) == (planned.info.name, [("life", ["life"])])
    assert f"{HOME}/other" in left(pool)


def test_a_clone_that_was_reset_from_its_own_commit_can_be_destroyed(pool: ClonePool, settings: Settings) -> None:
    base = pool.commit(life(pool), SECOND)
    pool.volume("life", 2, base)
    pool.things[f"{HOME}/life"].properties["zsnapdb:revision"] = "2"
    destroy.destroy(settings, THIS_HOST, "life")
    assert left(pool) == set()


def test_an_expired_clone_with_a_commit_is_taken_by_the_reaper(pool: ClonePool, settings: Settings) -> None:
    pool.commit(life(pool, expires="2020-01-01T00:00:00Z"), SECOND)
    (outcome,) = [item for item in reaper.reap(settings, THIS_HOST) if item.what == "clone"]
    assert (outcome.verdict, outcome.error) == (LeaseVerdict.REAP, None)
    assert left(pool) == set()


def test_a_commit_that_another_clone_was_made_from_becomes_a_commit_of_that_clone(
    pool: ClonePool, settings: Settings
) -> None:
    base = pool.commit(life(pool), SECOND)
    pool.clone("child", base, source="commit", port="33071")
    (plan,) = destroy.destroy(settings, THIS_HOST, "life")
    assert plan.removal.steps.kept == {SECOND: "child"}
    assert left(pool) == {f"{HOME}/child", f"{HOME}/child/r1", f"{HOME}/child/r1@zsnapdb-{SECOND}"}
    assert [(made.set.backup_id, made.clone) for made in commits(HOME)] == [(SECOND, "child")]
    assert pool.things[f"{HOME}/child/r1"].origin == f"{SOURCE}@zsnapdb-{FIRST}"


def test_a_dataset_of_somebody_else_keeps_the_clone_and_its_server(
    pool: ClonePool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = pool.commit(life(pool, expires="2020-01-01T00:00:00Z"), SECOND)
    pool.things["tank/mine"] = type(pool.things[HOME])({}, base)
    killed: list[ServerProcess] = []
    monkeypatch.setattr(ServerProcess, "kill", killed.append)
    with pytest.raises(PreflightError, match="tank/mine, which is not ours") as refused:
        destroy.destroy(settings, THIS_HOST, "life")
    assert refused.value.hint == "`zfs promote tank/mine` gives this dataset the snapshots that it needs"
    (outcome,) = [item for item in reaper.reap(settings, THIS_HOST) if item.what == "clone"]
    assert outcome.verdict is LeaseVerdict.KEEP
    assert "tank/mine" in outcome.reason
    assert (killed, [words for words in pool.commands if words[0] == "destroy"]) == ([], [])


def test_the_name_of_a_set_destroys_its_clones_the_source_last(pool: ClonePool, settings: Settings) -> None:
    for number, part in ((1, "source"), (2, "replica"), (3, "replica")):
        pool.clone(f"team-{number}", f"{SOURCE}@zsnapdb-{FIRST}", set=f"team {part}", port=str(33070 + number))
    done = destroy.destroy(settings, THIS_HOST, "team")
    assert [plan.info.name for plan in done] == ["team-2", "team-3", "team-1"]
    assert left(pool) == set()
    assert destroy.destroy(settings, THIS_HOST, "team") == ()


def test_a_clone_says_its_set_what_was_requested_and_whether_it_is_masked(pool: ClonePool, settings: Settings) -> None:
    base = f"{SOURCE}@zsnapdb-{FIRST}"
    dataset = pool.clone("life", base, set="team source", requested="2026-11-20T10:00:00Z")
    (info,) = catalogue.listing(settings, THIS_HOST)
    assert (info.set_name, info.part, info.requested, info.masked) == ("team", "source", "2026-11-20T10:00:00Z", None)
    pool.things[dataset].properties["zsnapdb:masked"] = "2026-11-22T00:00:01Z"
    (info,) = catalogue.listing(settings, THIS_HOST)
    assert info.masked == "2026-11-22T00:00:01Z"


def test_the_original_data_of_a_clone_is_what_it_was_created_from_whatever_it_was_reset_to(
    pool: ClonePool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = pool.snapshot(f"{SOURCE}@zsnapdb-{SECOND}")
    pool.clone("life", base, original=f"{FIRST} latest")
    located: list[str] = []

    def locate(_settings: Any, _instance: Any, requested: str, *_words: Any, **_named: Any) -> Any:
        located.append(requested)
        return CloneSource(SourceKind.BACKUP, SnapshotSet(requested, {}), info.origin)

    monkeypatch.setattr(data_replacement, "locate", locate)
    monkeypatch.setattr(data_replacement, "with_volumes", lambda instance: instance)
    monkeypatch.setattr(Instance, "of", lambda *words: SimpleNamespace(on_host=lambda host: None))
    info = catalogue.find(settings, THIS_HOST, "life")
    plan = reset.reset_plan(settings, THIS_HOST, "life", None).replaces
    assert plan is not None
    assert (located, plan.set_id, plan.is_original) == ([FIRST], FIRST, True)
    plan = reset.reset_plan(settings, THIS_HOST, "life", SECOND).replaces
    assert plan is not None
    assert (plan.set_id, plan.is_original) == (SECOND, False)


@pytest.mark.parametrize("volumes", ["", 'volumes = { data = "tank/mysql" }'])
def test_last_clone_of_a_live_set_takes_it_along(
    pool: ClonePool, settings: Settings, monkeypatch: pytest.MonkeyPatch, volumes: str
) -> None:
    text = f'[repository.r]\nurl = "file:///r"\n[instance.main]\nrepository = "r"\n{volumes}\n'
    settings = parse(text, "the test").model_copy(update={"clones": settings.clones})
    monkeypatch.setattr(kept_ports, "close", lambda *_: None)
    live = pool.snapshot(f"{SOURCE}@zsnapdb-{SECOND}", backup=SECOND, instance="main", state="live")
    for number, name in enumerate(("first", "last")):
        pool.clone(name, live, source="live", port=str(33070 + number))
    destroy.destroy_own(settings, THIS_HOST, "first")
    assert live in pool.things, "another clone needs it"
    destroy.destroy_own(settings, THIS_HOST, "last")
    assert live not in pool.things
    assert f"{SOURCE}@zsnapdb-{FIRST}" in pool.things
