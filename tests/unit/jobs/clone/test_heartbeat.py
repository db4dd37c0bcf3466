"""A clone whose holder stops to beat goes with the next sweep, and one whose holder beats stays."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import CommandError, NotFound, PreflightError, ZsnapdbError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base import clock_record
from zsnapdb.jobs.base.host import THIS_HOST, Host
from zsnapdb.jobs.clone import catalogue, clone_info, destroy, lifecycle, reaper
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.planning.clone import lease
from zsnapdb.planning.clone.lease import LeaseVerdict, stamp
from zsnapdb.report.clone.list import ClonesView

SETTINGS = Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return replace(THIS_HOST, run=tmp_path)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, host: Host) -> ClonePool:
    pool = ClonePool()
    pool.install(monkeypatch)
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks.THIS_HOST", host)
    pool.snapshot(f"{SOURCE}@zsnapdb-20261120T100000Z-0001")
    return pool


def made(pool: ClonePool, every: str, age: int = 0, left: int = 86400) -> None:
    """Make a clone `ci` that was made so many seconds ago, whose lease ends in `left` seconds."""
    now = datetime.now(UTC)
    pool.clone(
        "ci",
        f"{SOURCE}@zsnapdb-20261120T100000Z-0001",
        heartbeat=every,
        created=stamp(now - timedelta(seconds=age)),
        expires=stamp(now + timedelta(seconds=left)),
    )


def verdict(host: Host) -> LeaseVerdict:
    (outcome,) = [item for item in reaper.plan(SETTINGS, host) if item.what == "clone"]
    return outcome.verdict


def beat_file(host: Host, seconds_ago: float) -> None:
    file = clone_info.heartbeat_file(host, "ci")
    at = host.now().timestamp() - seconds_ago
    os.utime(file, (at, at))


def test_a_clone_stays_as_long_as_its_holder_beats_and_goes_when_it_stops(pool: ClonePool, host: Host) -> None:
    made(pool, "60", age=3600)
    assert verdict(host) is LeaseVerdict.REAP
    info = lifecycle.beat(SETTINGS, host, "ci")
    assert info.lease.heartbeat is not None
    assert verdict(host) is LeaseVerdict.KEEP
    at = host.now()
    host = replace(host, now=lambda: at)
    beat_file(host, 59)
    assert verdict(host) is LeaseVerdict.KEEP
    beat_file(host, 62)
    assert verdict(host) is LeaseVerdict.REAP
    beat_file(host, -3600)
    assert verdict(host) is LeaseVerdict.KEEP
    assert pool.commands == [], "a beat changes no property"


def test_after_its_creation_the_first_heartbeat_is_waited_for(pool: ClonePool, host: Host) -> None:
    made(pool, "60", age=30)
    assert verdict(host) is LeaseVerdict.KEEP


def test_a_new_clone_of_that_name_does_not_live_by_the_heartbeats_of_the_old_one(pool: ClonePool, host: Host) -> None:
    made(pool, "60")
    lifecycle.beat(SETTINGS, host, "ci")
    destroy.destroy(SETTINGS, host, "ci")
    assert not clone_info.heartbeat_file(host, "ci").exists()


def test_where_no_heartbeat_is_expected_none_ends_the_clone_and_none_is_taken(pool: ClonePool, host: Host) -> None:
    made(pool, "no", age=3600)
    assert verdict(host) is LeaseVerdict.KEEP
    with pytest.raises(PreflightError, match="no heartbeats are expected"):
        lifecycle.beat(SETTINGS, host, "ci")


def test_heartbeat_after_the_end_of_the_lease_is_refused(pool: ClonePool, host: Host) -> None:
    made(pool, "60", age=3600, left=-60)
    with pytest.raises(PreflightError, match="the lease of clone ci ended at") as refused:
        lifecycle.beat(SETTINGS, host, "ci")
    assert "extend its lease first" in refused.value.hint
    assert not clone_info.heartbeat_file(host, "ci").exists()
    assert verdict(host) is LeaseVerdict.REAP


@pytest.mark.parametrize("every", ["", "0x10", "-5", "60 ", "\u0661", "9" * 400])
def test_a_heartbeat_that_cannot_be_read_leaves_the_clone_to_the_doctor(
    pool: ClonePool, host: Host, every: str
) -> None:
    made(pool, every, age=3600)
    known = catalogue.known_clones(SETTINGS, host)
    assert verdict(host) is LeaseVerdict.KEEP
    if known.unreadable:
        listed = ClonesView(known.copies, datetime.now(UTC), known.unreadable)
        assert "the clone ci cannot be read: zsnapdb:heartbeat" in listed.text()
        assert listed.fields()["unreadable"][0]["dataset"] == f"{HOME}/ci"


def test_a_link_in_place_of_the_file_is_not_followed(pool: ClonePool, host: Host, tmp_path: Path) -> None:
    made(pool, "60")
    lifecycle.beat(SETTINGS, host, "ci")
    clone_info.heartbeat_file(host, "ci").unlink()
    clone_info.heartbeat_file(host, "ci").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PreflightError):
        lifecycle.beat(SETTINGS, host, "ci")
    assert not (tmp_path / "elsewhere").exists()


def test_beating_for_a_process_ends_with_it_and_with_the_clone(pool: ClonePool, host: Host) -> None:
    made(pool, "1", age=3600)
    holder = subprocess.Popen(["sleep", "60"])
    try:
        holder.kill()
        info = lifecycle.heartbeat_while(SETTINGS, host, "ci", holder.pid)
        assert info.name == "ci"
    finally:
        holder.wait()
    with pytest.raises(NotFound, match="no process"):
        lifecycle.heartbeat_while(SETTINGS, host, "ci", holder.pid)
    destroy.destroy(SETTINGS, host, "ci")
    with pytest.raises(ZsnapdbError, match="ci"):
        lifecycle.heartbeat_while(SETTINGS, host, "ci", os.getpid())


def test_a_holder_that_beats_after_the_judgement_keeps_its_clone(
    pool: ClonePool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(pool, "60", age=3600)
    judged = lease.judge

    def late(*words: object) -> object:
        verdict = judged(*words)  # type: ignore[arg-type]
        clone_info.beat(host, "ci")
        return verdict

    monkeypatch.setattr("zsnapdb.jobs.clone.reaper.judge", late)
    (outcome,) = [item for item in reaper.reap(SETTINGS, host) if item.what == "clone"]
    assert outcome.verdict is LeaseVerdict.KEEP
    assert "is active again" in str(outcome.error)
    assert catalogue.listing(SETTINGS, host)[0].name == "ci"


def test_while_zfs_does_not_answer_the_holder_is_there_all_the_same(
    pool: ClonePool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(pool, "1", age=3600)
    holder = subprocess.Popen(["sleep", "600"])
    looks, beats = list[str](), list[int]()

    def fails_after_the_first(settings: Settings, host: Host, name: str) -> CloneInfo:
        looks.append(name)
        if len(looks) > 1:
            beats.append(clone_info.heartbeat_file(host, "ci").stat().st_mtime_ns)
            if len(looks) > 3:
                holder.kill()
            raise CommandError("zfs did not answer", hint="")
        return catalogue.ready(settings, host, name)

    monkeypatch.setattr(lifecycle, "ready", fails_after_the_first)
    try:
        lifecycle.heartbeat_while(SETTINGS, host, "ci", holder.pid)
    finally:
        holder.kill()
        holder.wait()
    assert len(beats) > 2
    assert beats == sorted(set(beats))
    at = datetime.fromtimestamp(beats[-1] / 1e9, UTC)
    assert verdict(replace(host, now=lambda: at)) is LeaseVerdict.KEEP


@pytest.mark.parametrize("jump", [timedelta(days=-3650), timedelta(), timedelta(seconds=50), timedelta(days=3650)])
@pytest.mark.parametrize("is_trusted", [False, True])
def test_heartbeat_counts_by_the_steady_clock(
    pool: ClonePool, host: Host, tmp_path: Path, jump: timedelta, is_trusted: bool
) -> None:
    """A heartbeat while the wall clock was wrong neither ends the clone early nor keeps it for longer."""
    right, steady = datetime.now(UTC), [1000.0]

    def at(seconds: float, error: timedelta) -> Host:
        steady[0] = 1000.0 + seconds
        now = right + timedelta(seconds=seconds) + error
        return replace(host, records=tmp_path / "records", now=lambda: now, steady=lambda: ("boot", steady[0]))

    made(pool, "60")
    clock_record.confirm(at(-10, timedelta()))
    clone_info.beat(at(0, jump), "ci")
    if is_trusted:
        clock_record.confirm(at(1, timedelta()))
    assert verdict(at(50, timedelta())) is LeaseVerdict.KEEP
    assert verdict(at(62, timedelta())) is LeaseVerdict.REAP
    clone_info.beat(at(70, timedelta()), "ci")
    assert verdict(at(129, jump)) is LeaseVerdict.KEEP
    assert verdict(at(131, jump)) is LeaseVerdict.REAP


def test_heartbeat_before_a_reboot_is_as_old_as_the_boot(pool: ClonePool, host: Host) -> None:
    made(pool, "60")
    now = datetime.now(UTC)
    clone_info.beat(replace(host, now=lambda: now, steady=lambda: ("one", 5.0)), "ci")
    for seconds, expected in ((59.0, LeaseVerdict.KEEP), (61.0, LeaseVerdict.REAP)):
        later = replace(host, now=lambda: now, steady=lambda: ("two", seconds))  # noqa: B023
        assert verdict(later) is expected


@pytest.mark.parametrize("text", ["", "boot", "boot nan\n", "boot 1.000000", "x" * 300, "boot -1.000000\n"])
def test_heartbeat_file_of_another_form_counts_by_its_time(pool: ClonePool, host: Host, text: str) -> None:
    made(pool, "60", age=3600)
    lifecycle.beat(SETTINGS, host, "ci")
    clone_info.heartbeat_file(host, "ci").write_text(text)
    beat_file(host, 59)
    assert verdict(host) is LeaseVerdict.KEEP
    beat_file(host, 62)
    assert verdict(host) is LeaseVerdict.REAP
