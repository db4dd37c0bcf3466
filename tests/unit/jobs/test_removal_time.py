"""Each command that looks records the clocks of its host, and removals count with what they prove."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.support.world import World, made
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.repository import KeepRules, KeepSettings
from zsnapdb.jobs.backup import local_snapshot
from zsnapdb.jobs.base.clock_record import confirm, removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.record.idempotency_records import Action, OnceRecords, RunVerdict
from zsnapdb.jobs.repository import prune
from zsnapdb.planning.clock_guard import RemovalTime
from zsnapdb.serve.helper_messages import ResultAnswer
from zsnapdb.serve.operations import OperationRecord, Operations, new_id
from zsnapdb.serve.roles import VerbKind

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ACTION = Action("prune", "main in r")


@dataclass
class Clocks:
    """The clocks of a test's host: the wall clock of its world, and how far that is off."""

    world: World
    began: datetime
    off: timedelta = timedelta()
    boot: str = "boot"

    def instance(self, within: float = 1800.0) -> Instance:
        rules = {"local": KeepRules(within=within), "keep": KeepSettings(within=within)}
        settings = self.world.instance.settings.model_copy(update=rules)
        return replace(self.world.instance, settings=settings, host=self.host)

    @property
    def host(self) -> Host:
        return replace(self.world.instance.host, steady=self.steady)

    def steady(self) -> tuple[str, float]:
        return self.boot, (self.world.time - self.off - self.began).total_seconds()

    def jump(self, by: timedelta) -> None:
        self.world.time += by
        self.off += by


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with made(tmp_path) as world:
        yield world


@pytest.fixture
def clocks(world: World) -> Clocks:
    return Clocks(world, world.time)


def local_ids(world: World) -> list[str]:
    return [one.backup_id for one in local_snapshot.sets(world.instance, "local")]


def test_snapshot_under_clock_hours_ahead_expires_no_set(clocks: Clocks) -> None:
    world = clocks.world
    before = [local_snapshot.snapshot(clocks.instance(), opener=world.open_source).backup_id for _ in range(6)]
    clocks.jump(5 * HOUR)
    ahead = local_snapshot.snapshot(clocks.instance(), opener=world.open_source)
    assert set(before) < set(local_ids(world))
    assert any("ahead of its steady clock" in warning and "--trust-clock" in warning for warning in ahead.warnings)
    clocks.jump(-5 * HOUR)
    after = local_snapshot.snapshot(clocks.instance(), opener=world.open_source)
    assert (after.warnings, set(before) < set(local_ids(world))) == ((), True)
    world.time += HOUR
    assert set(local_snapshot.snapshot(clocks.instance(), opener=world.open_source).expired) == {
        *before,
        after.backup_id,
    }


def test_set_made_while_clock_was_behind_expires_no_earlier(clocks: Clocks) -> None:
    world = clocks.world
    first = local_snapshot.snapshot(clocks.instance(), opener=world.open_source).backup_id
    clocks.jump(-57 * DAY)
    behind = local_snapshot.snapshot(clocks.instance(), opener=world.open_source).backup_id
    clocks.jump(57 * DAY)
    last = local_snapshot.snapshot(clocks.instance(), opener=world.open_source)
    assert (last.expired, set(local_ids(world))) == ((), {first, behind, last.backup_id})


def test_set_from_future_expires_once_clock_is_sure(clocks: Clocks) -> None:
    world = clocks.world
    removal_time(clocks.host)
    clocks.jump(900 * DAY)
    ahead = local_snapshot.snapshot(clocks.instance(), opener=world.open_source).backup_id
    clocks.jump(-900 * DAY)
    second = local_snapshot.snapshot(clocks.instance(), opener=world.open_source)
    world.time += 2 * HOUR
    third = local_snapshot.snapshot(clocks.instance(), opener=world.open_source)
    assert (second.expired, third.expired) == ((), (second.backup_id,)), "the record of the clock is new"
    world.time += DAY
    assert ahead in local_snapshot.snapshot(clocks.instance(), opener=world.open_source).expired


def test_prune_under_clock_that_jumped_is_refused_until_confirmed(clocks: Clocks) -> None:
    world = clocks.world
    # The store is on a disk, whose clock is that of the machine of this test.
    world.time = datetime.now(UTC) - HOUR
    first, second = (world.backup(full=True).manifest.backup_id for _ in range(2))
    removal_time(clocks.host)
    clocks.jump(5 * HOUR)
    assert prune.prune(clocks.instance()).removed == ()
    clocks.jump(40 * DAY)
    with pytest.raises(PreflightError, match="ahead of its steady clock"):
        prune.prune(clocks.instance())
    with pytest.raises(PreflightError, match="ahead of its steady clock"):
        prune.plan(clocks.instance())
    assert world.ids() == [first, second]
    assert prune.prune(clocks.instance(), trusts_clock=True).removed == (first,)
    assert removal_time(clocks.host) == RemovalTime(world.time, world.time)


def test_run_is_remembered_through_clock_that_jumps_either_way(clocks: Clocks) -> None:
    records, action = OnceRecords(clocks.host), Action("backup", "main")
    day = f"{clocks.world.time:%Y%m%d}"
    run, other = f"{day}T080000Z-0123abcd", f"{day}T090000Z-0123abcd"
    records.end(records.begin(run, action), 0, "done", "{}")
    clocks.jump(40 * DAY)
    records.begin(other, action)
    known = records.read(run)
    assert known is not None
    assert records.decide(run, action, known).verdict is RunVerdict.ANSWER
    clocks.jump(-40 * DAY)
    clocks.world.time += 40 * DAY
    records.begin(f"{clocks.world.time:%Y%m%d}T090000Z-0123abcd", action)
    assert records.read(run) is None
    clocks.jump(-40 * DAY)
    assert records.decide(run, action, None).verdict is RunVerdict.REFUSE


def test_record_survives_between_commands_and_person_confirms(clocks: Clocks) -> None:
    assert removal_time(clocks.host).doubt == ""
    clocks.jump(3 * DAY)
    assert removal_time(clocks.host).at < clocks.world.time - 2 * DAY
    assert removal_time(clocks.host).doubt
    confirm(clocks.host)
    assert removal_time(clocks.host) == RemovalTime(clocks.world.time, clocks.world.time)


def test_record_that_cannot_be_read_says_nothing(clocks: Clocks) -> None:
    removal_time(clocks.host)
    clocks.jump(3 * DAY)
    (clocks.host.clocks / "clock.json").write_bytes(b"{")
    assert removal_time(clocks.host) == RemovalTime(clocks.world.time, clocks.world.time)


def test_folder_that_cannot_be_made_stops_no_command(clocks: Clocks) -> None:
    clocks.host.clocks.write_text("in the way")
    assert removal_time(clocks.host) == RemovalTime(clocks.world.time, clocks.world.time)
    with pytest.raises(PreflightError):
        confirm(clocks.host)


def test_agreeing_clocks_are_written_once_a_minute(clocks: Clocks) -> None:
    removal_time(clocks.host)
    file = clocks.host.clocks / "clock.json"
    first = file.stat().st_ino
    clocks.world.time += timedelta(seconds=30)
    removal_time(clocks.host)
    assert file.stat().st_ino == first
    clocks.world.time += timedelta(seconds=31)
    removal_time(clocks.host)
    assert file.stat().st_ino != first


def test_this_host_has_steady_clock_beside_its_own(tmp_path: Path) -> None:
    host = Host(run=tmp_path / "run", records=tmp_path / "stored")
    first, second = host.reading(), host.reading()
    assert first is not None
    assert second is not None
    assert (first.boot, first.steady <= second.steady) == (second.boot, True)
    assert replace(host, now=lambda: first.wall).reading() is None


def _operation(host: Host) -> OperationRecord:
    return OperationRecord(
        id=new_id(),
        subject="unix:eve",
        verb=VerbKind.CLONE_CREATE,
        clone="dev",
        request="0" * 64,
        key="1" * 64,
        started=host.now(),
    )


def test_serve_keeps_operations_through_clock_ahead(clocks: Clocks, tmp_path: Path) -> None:
    host = clocks.host
    operations = Operations(tmp_path / "operations", host.now, lambda: removal_time(host))
    record = _operation(host)
    operations.begin(record, lambda: ResultAnswer(document={}), threading.Event())
    operations.settle(60.0)
    clocks.jump(40 * DAY)
    operations.forget_old()
    assert operations.of_key("unix:eve", "1" * 64) is not None
    clocks.jump(-40 * DAY)
    clocks.world.time += 2 * DAY
    assert operations.of_key("unix:eve", "1" * 64) is None


@pytest.mark.parametrize("ahead", [HOUR, 40 * DAY, 4000 * DAY])
def test_serve_forgets_operation_that_ended_while_clock_was_ahead(
    clocks: Clocks, tmp_path: Path, ahead: timedelta
) -> None:
    host = clocks.host
    removal_time(host)
    for _ in range(2):
        clocks.world.time += DAY
        removal_time(host)
    operations = Operations(tmp_path / "operations", host.now, lambda: removal_time(host))
    record = _operation(host)
    clocks.jump(ahead)
    operations.begin(record, lambda: ResultAnswer(document={}), threading.Event())
    operations.settle(60.0)
    clocks.jump(-ahead)
    for hours, is_known in ((1, True), (22, True), (3, False)):
        clocks.world.time += hours * HOUR
        assert (Operations(operations.folder, host.now, operations.clock).find(record.id) is not None) == is_known


def test_record_of_run_from_the_future_goes_a_month_after_the_clock_is_right(clocks: Clocks) -> None:
    records, run = OnceRecords(clocks.host), f"{clocks.world.time + 4000 * DAY:%Y%m%dT%H%M%SZ}-0123abcd"
    removal_time(clocks.host)
    for _ in range(2):
        clocks.world.time += DAY
        removal_time(clocks.host)
    clocks.jump(4000 * DAY)
    assert records.decide(run, ACTION, None).verdict is RunVerdict.BEGIN
    done = records.end(records.begin(run, ACTION), 0, "text", "{}")
    os.utime(records.file(run).parent, 2 * (clocks.world.time.timestamp(),))
    clocks.jump(-4000 * DAY)
    for days, is_known in ((1, True), (29, True), (2, False)):
        clocks.world.time += days * DAY
        # The next run removes old records.
        other = f"{clocks.world.time:%Y%m%dT%H%M%SZ}-00000000"
        records.begin(other, ACTION)
        assert (records.read(run) == done) == is_known
    decided = records.decide(run, ACTION, None)
    assert (decided.verdict, "in the future" in decided.reason) == (RunVerdict.REFUSE, True)


def test_serve_forgets_no_new_key_before_old_ones_when_the_clock_was_set_back(
    clocks: Clocks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request with a forgotten key would begin again."""
    monkeypatch.setattr("zsnapdb.serve.operations._MOST_OF_SUBJECT", 3)
    host = clocks.host
    operations = Operations(tmp_path / "operations", host.now, lambda: removal_time(host))
    for number in range(6):
        if number == 3:
            clocks.jump(-HOUR)
        record = OperationRecord(
            id=new_id(),
            subject="unix:eve",
            verb=VerbKind.CLONE_CREATE,
            clone="dev",
            request="0" * 64,
            key=f"{number}" * 64,
            started=host.now(),
        )
        operations.begin(record, lambda: ResultAnswer(document={}), threading.Event())
        operations.settle(60.0)
    assert [operations.of_key("unix:eve", f"{number}" * 64) is not None for number in range(6)] == 2 * [False] + 4 * [
        True
    ]
