"""What is true of a clone after a reset by a swap: its dataset has another name than the clone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base import run_context
from zsnapdb.base.errors import CommandError, DamagedError, ExistsError, PreflightError, ServerError, ZsnapdbError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.clone import (
    branches,
    catalogue,
    create_plan,
    credentials,
    data_replacement,
    destroy,
    haproxy_socket,
    locks,
    reset,
    row_reset,
)
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.request import CloneRequest
from zsnapdb.planning.clone import row_reset as planning
from zsnapdb.planning.clone.kept_ports import KeptRoute

SET, COMMIT = "20261120T100000Z-0001", "20261121T100000Z-0002"
BASE = f"{SOURCE}@zsnapdb-{SET}"
SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", replace(THIS_HOST, run=tmp_path))
    pool.snapshot(BASE)
    return pool


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return replace(THIS_HOST, run=tmp_path)


@pytest.fixture
def swapped(pool: ClonePool) -> ClonePool:
    """A clone `dev` that has the dataset of one that waited, which has that of `dev` now."""
    pool.clone("dev", BASE, id="slot", label="slot", owner="the pool", pool="replaced", guid="2")
    pool.clone("slot", BASE, id="dev", label="dev", pool="handed out", guid="1")
    return pool


def anchors(pool: ClonePool) -> list[str]:
    return sorted(name.rpartition("/")[2] for name in pool.things if name.rpartition("/")[0] == HOME)


def test_a_clone_may_have_the_name_again_after_it_was_swapped_and_destroyed(swapped: ClonePool, host: Host) -> None:
    assert [one.info.name for one in destroy.destroy(SETTINGS, host, "dev")] == ["slot"]
    assert anchors(swapped) == []


def test_what_was_replaced_stays_as_long_as_somebody_works_on_it_or_it_is_somebody_s(
    swapped: ClonePool, host: Host
) -> None:
    swapped.things[f"{HOME}/slot"].properties["zsnapdb:label"] = "web"
    with exclusive(locks.name_of_clone("dev"), doing="looking", patience=0):
        destroy.destroy(SETTINGS, host, "web")
    assert anchors(swapped) == ["dev"]
    swapped.clone("dev", BASE, id="other", label="other")
    swapped.clone("other", BASE, id="dev", label="dev")
    destroy.destroy(SETTINGS, host, "dev")
    assert anchors(swapped) == ["dev"]


def test_the_hint_of_a_name_that_is_taken_destroys_what_has_it_and_nothing_else(swapped: ClonePool, host: Host) -> None:
    others = [one for one in catalogue.claims(SETTINGS).copies if one.name != "slot"]
    with pytest.raises(ExistsError) as refused:
        catalogue.refuse_label(others, "dev")
    assert "clone destroy slot`" in refused.value.hint
    destroy.destroy(SETTINGS, host, "slot")
    assert anchors(swapped) == ["slot"]


def test_no_clone_gets_a_port_to_which_haproxy_still_leads_the_clients_of_another(
    pool: ClonePool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_plan, "port_is_free", lambda _: True)
    request, first = CloneRequest(owner="ada", name="new"), SETTINGS.clones.first_port
    assert create_plan._admitted(SETTINGS, host, request, "new", 1 << 40, catalogue.claims(SETTINGS))[1] == first
    monkeypatch.setattr(haproxy_socket, "routes_or_none", lambda _: {23170: KeptRoute("127.0.0.1", first), 23171: None})
    assert create_plan._admitted(SETTINGS, host, request, "new", 1 << 40, catalogue.claims(SETTINGS))[1] == first + 1


@pytest.fixture
def resets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Resets whose rows cannot be undone; the list has the datasets whose data was replaced."""
    replaced: list[str] = []

    def refuse(*_: object) -> None:
        raise PreflightError("the definition of a table differs")

    def replace_data(settings: Settings, host: Host, info: CloneInfo, *_: object, **__: object) -> CloneInfo:
        replaced.append(info.name)
        return info

    monkeypatch.setattr(row_reset, "undo_rows", refuse)
    monkeypatch.setattr(reset, "is_offered", lambda _: True)
    monkeypatch.setattr(data_replacement, "replace_data", replace_data)
    return replaced


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_an_error_after_the_exchange_replaces_no_data_that_is_nobody_s_by_now(
    pool: ClonePool, host: Host, monkeypatch: pytest.MonkeyPatch, resets: list[str], *, is_exchanged: bool
) -> None:
    pool.clone("dev", BASE)

    def fails(*_: object) -> None:
        if is_exchanged:
            pool.clone("dev", BASE, id="slot", label="slot", owner="the pool", pool="replaced", guid="2")
            pool.clone("slot", BASE, id="dev", label="dev", pool="handed out", guid="1")
        raise ServerError("zfs did not answer")

    monkeypatch.setattr(reset, "swap", fails)
    if is_exchanged:
        with pytest.raises(ServerError):
            reset.reset(SETTINGS, host, "dev", None, SILENT)
    else:
        reset.reset(SETTINGS, host, "dev", None, SILENT)
    assert resets == ([] if is_exchanged else ["dev"])


@pytest.mark.parametrize("audience", ["", "ada"])
@pytest.mark.parametrize("kind", [PreflightError, ServerError, DamagedError, CommandError])
def test_why_no_faster_way_was_possible_names_nothing_of_others(
    pool: ClonePool,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    resets: list[str],
    audience: str,
    kind: type[ZsnapdbError],
) -> None:
    pool.clone("dev", BASE)

    def fails(*_: object) -> None:
        raise kind("the dataset of clone merger-with-acme is busy")

    monkeypatch.setattr(reset, "swap", fails)
    monkeypatch.setenv(run_context.AUDIENCE_VARIABLE, audience)
    done = reset.reset(SETTINGS, host, "dev", None, SILENT)
    assert ("merger-with-acme" in done.reason) == (audience == "")
    assert "no swap: " in done.reason


def test_a_reset_that_takes_longer_than_a_heartbeat_ends_no_clone(
    pool: ClonePool, host: Host, monkeypatch: pytest.MonkeyPatch, resets: list[str]
) -> None:
    pool.clone("dev", BASE, heartbeat="30")
    file = host.run / "heartbeats" / "dev"
    file.parent.mkdir()
    file.touch()
    os.utime(file, (0, 0))
    monkeypatch.setattr(reset, "is_offered", lambda _: False)
    reset.reset(SETTINGS, host, "dev", None, SILENT)
    assert resets == ["dev"]
    beats = catalogue.find(SETTINGS, host, "dev").lease.heartbeat
    assert beats is not None
    assert not beats.is_over(host.now())


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("none", "none waits"),
        ("busy", "another command uses it"),
        ("taken", "another command has just taken or replaced it"),
        ("refused", "its server does not answer"),
        ("filling", "none waits; the pool is being filled"),
    ],
)
def test_reset_without_a_swap_says_why(
    pool: ClonePool, host: Host, monkeypatch: pytest.MonkeyPatch, resets: list[str], state: str, expected: str
) -> None:
    pool.clone("dev", BASE)
    pool.clone("slot", BASE, owner="the pool", pool="waits")
    slot = catalogue.of_dataset(SETTINGS, host, "slot")

    def refuse(*_: object) -> None:
        raise ServerError("its server does not answer")

    monkeypatch.setattr(Instance, "of", lambda *_: SimpleNamespace(on_host=lambda _: _SilentInstance()))
    monkeypatch.setattr(credentials, "read", lambda _: SecretStr("secret"))
    monkeypatch.setattr(planning, "clone_objection", lambda _: None)
    monkeypatch.setattr(reset, "_case", lambda *_: None)
    monkeypatch.setattr("zsnapdb.jobs.clone.pool.slots_of", lambda *_: [] if state in ("none", "filling") else [slot])
    monkeypatch.setattr(reset, "_objection", lambda *_: None)
    monkeypatch.setattr(reset, "_still_fits", lambda *_: state != "taken")
    monkeypatch.setattr(reset, "_make_ready", refuse)
    monkeypatch.setattr("zsnapdb.zfs.datasets.set_together", lambda _: True)
    locked = {"busy": locks.name_of_clone("slot"), "filling": locks.name_of_pool("main")}.get(state, "other")
    with exclusive(locked, doing="working"):
        done = reset.reset(SETTINGS, host, "dev", None, SILENT)
    assert done.reason.endswith(f"no swap: no clone of the pool can take its place; {expected}")


class _SilentInstance:
    events = SILENT


def test_no_branch_begins_at_the_data_of_a_reset_that_was_interrupted(pool: ClonePool, host: Host) -> None:
    """Its branch is at a commit, and its data is that of the instance: no server has started with it."""
    heads = f"main main={COMMIT} other={COMMIT}"
    pool.clone("dev", BASE, revision=2, phase="new", branches=heads)
    pool.commit(pool.volume("dev", 1, BASE), COMMIT)
    for job in (
        lambda: branches.switch(SETTINGS, host, "dev", "other", SILENT).run(),
        lambda: branches.create(SETTINGS, host, "dev", "third").run(),
    ):
        with pytest.raises(PreflightError, match="never started") as refused:
            job()
        assert "clone start dev" in refused.value.hint
    assert pool.value(f"{HOME}/dev", "zsnapdb:branches")[0] == heads
