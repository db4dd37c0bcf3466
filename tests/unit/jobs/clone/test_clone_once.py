"""A clone and a commit have the id of the run that made them, so a run that is repeated finds what it made."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.config import settings as config
from zsnapdb.config.services import AddressSettings
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue, destroy, haproxy_socket, reset, reset_baseline, run_results
from zsnapdb.jobs.clone.reset import ResetClone
from zsnapdb.jobs.clone.reset_baseline import RecordedReset
from zsnapdb.jobs.clone.row_reset import UndoneRows
from zsnapdb.mysql.process.process_managers import started_at
from zsnapdb.planning.clone.kept_ports import KeptRoute

FIRST, SECOND = "20261120T100000Z-0001", "20261120T110000Z-0002"
RUN, OTHER = "20261127T080000Z-0123abcd", "20261127T090000Z-0123abcd"
TEXT = """[instance.main]
socket = "/x"
volumes = { data = "tank/mysql" }
repository = "r"
[repository.r]
url = "file:///r"
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    pool.snapshot(f"{SOURCE}@zsnapdb-{FIRST}")
    return pool


@pytest.fixture
def settings() -> Settings:
    return config.parse(TEXT, "test").model_copy(update={"clones": CloneSettings(dataset=HOME)})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return replace(THIS_HOST, run=tmp_path, run_id=lambda: RUN)


def made(clones: ClonePool, name: str, **facts: Any) -> None:
    clones.clone(name, f"{SOURCE}@zsnapdb-{FIRST}", **facts)


def test_the_clone_of_the_run_is_found_and_no_other(pool: ClonePool, settings: Settings, host: Host) -> None:
    instance = Instance.of(settings, "main").on_host(host)
    made(pool, "older")
    made(pool, "other", run=OTHER)
    made(pool, "waits", run=RUN, pool="waits", owner="the pool")
    assert run_results.created(settings, instance) is None
    made(pool, "web", run=RUN)
    found = run_results.created(settings, instance)
    assert found is not None
    assert (found.info.name, found.is_of_pool) == ("web", False)


def test_a_run_that_was_killed_before_haproxy_was_told_has_a_clone_behind_its_kept_port(
    pool: ClonePool, settings: Settings, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its user is told a port that the next swap takes away."""
    settings = settings.model_copy(update={"clones": settings.clones.model_copy(update={"address": AddressSettings()})})
    told: list[tuple[int, KeptRoute | None]] = []
    monkeypatch.setattr(haproxy_socket, "routes_or_none", lambda _: {})
    monkeypatch.setattr(haproxy_socket, "lead_port", lambda _, port, route: told.append((port, route)))
    made(pool, "web", run=RUN, address="23170", pool="handed out")
    found = run_results.created(settings, Instance.of(settings, "main").on_host(host))
    assert found is not None
    assert (found.info.client_port, told) == (23170, [(23170, KeptRoute("127.0.0.1", 33070))])


def test_what_the_killed_run_left_half_made_goes_first(pool: ClonePool, settings: Settings, host: Host) -> None:
    made(pool, "web", run=RUN, phase="making")
    made(pool, "other", run=OTHER, phase="making")
    assert run_results.created(settings, Instance.of(settings, "main").on_host(host)) is None
    assert f"{HOME}/web" not in pool.things
    assert f"{HOME}/other" in pool.things


def test_the_password_is_told_to_the_run_that_made_the_clone_alone(
    pool: ClonePool, settings: Settings, host: Host, tmp_path: Path
) -> None:
    folder = tmp_path / "web" / ".zsnapdb"
    folder.mkdir(parents=True)
    (folder / "client.cnf").write_text("[client]\npassword=s3cret\n")
    made(pool, "web", run=RUN, root=str(tmp_path / "web"))
    assert run_results.password_of(settings, host, "web") == "s3cret"
    assert run_results.password_of(settings, replace(host, run_id=lambda: OTHER), "web") is None
    destroy.destroy(settings, host, "web")
    assert run_results.password_of(settings, host, "web") is None


def test_the_commit_of_the_run_is_found_and_no_other(pool: ClonePool, settings: Settings, host: Host) -> None:
    dataset = pool.clone("web", f"{SOURCE}@zsnapdb-{FIRST}", run=RUN)
    pool.commit(dataset, SECOND)
    # It inherits the run that made the clone, which did not make the commit.
    assert run_results.committed(settings, host, "web") is None
    name = f"{dataset}@zsnapdb-{SECOND}"
    pool.things[name].properties["zsnapdb:run"] = RUN
    known = run_results.committed(settings, host, "web")
    assert known is not None
    assert known.set.backup_id == SECOND


def test_the_reset_of_the_run_is_found_with_what_it_did_as_long_as_its_data_is_there(
    pool: ClonePool, settings: Settings, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(pool, "web")
    info, started = replace(catalogue.find(settings, host, "web"), pid=os.getpid()), started_at(os.getpid())
    assert started is not None
    monkeypatch.setattr(reset, "ready", lambda *_: info)
    reset_baseline.note_reset(host, info, RecordedReset(run_id=RUN))
    assert reset.done_by_run(settings, host, "web") is None, "it is not known how the clone was"
    state = {"backup_id": FIRST, "revision": 1, "rules": "", "pid": os.getpid(), "started": started, "file": "b.000001"}
    state |= {"offset": 4, "digest": "", "inode": 1, "definitions": "", "locks_accounts": True, "counters": None}
    reset_baseline.store(host, "web", reset_baseline.ResetBaseline.model_validate(state))
    assert reset.done_by_run(settings, host, "web") is None
    for done in (
        ResetClone(info, UndoneRows(2, 5, 0.5)),
        ResetClone(info, swap_seconds=0.25, reason="the definition of a table differs"),
        ResetClone(info, reason="its server does not run"),
    ):
        reset_baseline.note_reset(host, info, reset._reset_record(RUN, done))
        assert reset.done_by_run(settings, host, "web") == done
        assert reset.done_by_run(settings, replace(host, run_id=lambda: OTHER), "web") is None
    monkeypatch.setattr(reset, "ready", lambda *_: replace(info, revision=2))
    assert reset.done_by_run(settings, host, "web") is None


def test_a_clone_that_has_the_name_again_is_another_one(pool: ClonePool, settings: Settings, host: Host) -> None:
    made(pool, "web")
    pool.things[f"{HOME}/web"].txg = 11
    first = run_results.guids(settings, host, "web")
    destroy.destroy(settings, host, "web")
    assert run_results.guids(settings, host, "web") == ()
    made(pool, "web")
    pool.things[f"{HOME}/web"].txg = 12
    assert set(run_results.guids(settings, host, "web")).isdisjoint(first)
