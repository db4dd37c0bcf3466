"""A move of files ends on the copies or on the old files, wherever it is interrupted. What clients wrote is kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from tests.unit.support.moving_host import NAMES, Killed, MovingHost, moving_host
from zsnapdb.base.errors import CommandError, DamagedError, NotOursError, PreflightError, ServerError
from zsnapdb.jobs.host import tree_copy
from zsnapdb.jobs.setup import discovery as setup
from zsnapdb.jobs.setup import move as setup_move
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.steps.move_state import MovedServer, MoveRecord
from zsnapdb.planning.setup.facts import SetupAnswers
from zsnapdb.planning.setup.move import MovePhase, MoveStep, ServedPlace, ServerMove, decide
from zsnapdb.planning.setup.plan import StartedMove
from zsnapdb.zfs import command


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MovingHost:
    return moving_host(tmp_path, monkeypatch)


def go_on(move: ServerMove | None = None) -> None:
    """Do what the same setup does next."""
    record = move_state.recorded()
    if record is None:
        assert move is not None
        setup_move.execute(move)
        return
    decision = decide(record.move, move_state.observe(record))
    if decision.step is None:
        raise PreflightError(decision.why, hint=decision.hint)
    setup_move.execute(record.move, decision.step)


def check_moved(host: MovingHost) -> None:
    assert host.runs_on == f"{host.datadir}/data"
    assert host.served() == f"row {host.rows}", "a row that was acknowledged is lost"
    files = {str(file.relative_to(host.datadir)) for file in host.datadir.rglob("*") if file.is_file()}
    assert files == {"data/ibdata1", "ib_logfile0", "mysql-bin.000001", "mysql-bin.index", "mysql-bin.state"}
    assert (host.datadir / "mysql-bin.index").read_text() == f"{host.datadir}/mysql-bin.000001\n"
    assert (host.root / "mysql.before-zfs" / "ibdata1").exists()
    assert not (host.root / "mysql.on-zfs").exists(), "nothing is in the way of another move"
    assert move_state.recorded() is None
    assert host.snapshots == {}


def test_a_move_ends_with_the_server_on_the_copies_and_the_old_files_kept(host: MovingHost) -> None:
    setup_move.execute(host.move())
    check_moved(host)


STEPS, STARTS = 44, 35
"""How often a whole move reaches a step that it may be killed at, and the one before the start on the copies."""


def test_there_are_no_more_steps_to_be_killed_at(host: MovingHost) -> None:
    setup_move.execute(host.move())
    assert host.count == STEPS


@pytest.mark.parametrize("is_started", [True, False])
@pytest.mark.parametrize("at", range(1, STEPS + 1))
def test_a_move_that_was_killed_goes_on_and_keeps_what_was_written_meanwhile(
    host: MovingHost, at: int, is_started: bool
) -> None:
    host.kill_at = at
    with pytest.raises(Killed):
        setup_move.execute(host.move())
    host.kill_at = -1
    if is_started:
        # By a person, or by systemd after a reboot. It starts nowhere in the middle of the switch.
        try:
            host.start()
        except CommandError:
            assert move_state.recorded() is not None
    if host.runs_on:
        host.write()
    was_on = host.runs_on
    stops = sum(line.startswith("systemctl stop") for line in host.commands)
    if move_state.recorded() is not None or not was_on.endswith("/data"):
        go_on(host.move())
    check_moved(host)
    if was_on.endswith("/data"):
        assert sum(line.startswith("systemctl stop") for line in host.commands) == stops, "it was stopped"


def fail_on_zfs(place: str) -> None:
    """Fail as a server does that cannot open its files."""
    if place.endswith("/data"):
        raise CommandError("no permission")


def test_a_server_that_did_not_open_its_copies_is_put_back_and_the_next_move_ends_well(host: MovingHost) -> None:
    host.at_start = fail_on_zfs
    with pytest.raises(ServerError, match="runs on its old files again"):
        setup_move.execute(host.move())
    assert host.runs_on == str(host.datadir)
    assert list(host.options.iterdir()) == []
    host.at_start = lambda place: None
    host.write()
    go_on()
    check_moved(host)


def test_a_server_whose_later_options_name_other_files_is_not_started_on_a_mixture(host: MovingHost) -> None:
    """Its options are checked before it is stopped, and again before it is started on the copies."""
    host.later, before = "--datadir=/var/lib/mysql", host.rows
    with pytest.raises(ServerError, match=r"the server would not use .*datadir = /var"):
        setup_move.execute(host.move())
    assert (host.runs_on, host.rows, host.commands) == (str(host.datadir), before, [])
    assert list(host.options.iterdir()) == []
    host.later = ""
    host.at_stop = lambda: setattr(host, "later", "--datadir=/var/lib/mysql")
    with pytest.raises(ServerError, match=r"old files again: the server would not use .*datadir = /var"):
        go_on()
    assert (host.runs_on, host.rows) == (str(host.datadir), before + 1)
    host.later, host.at_stop = "", lambda: None
    go_on()
    check_moved(host)


@pytest.mark.parametrize("at", range(1, 12))
def test_a_server_that_is_put_back_and_was_killed_meanwhile_loses_nothing(host: MovingHost, at: int) -> None:
    host.at_start = fail_on_zfs
    host.kill_at = STARTS + at
    with pytest.raises((Killed, ServerError)):
        setup_move.execute(host.move())
    host.kill_at, host.at_start = -1, lambda place: None
    go_on()
    check_moved(host)


def write_and_fail_on_zfs(place: str) -> None:
    if place.endswith("/data"):
        Path(place, "ibdata1").write_text("redo")
        raise CommandError("it ended")


def test_a_server_that_opened_its_copies_is_not_put_back(host: MovingHost) -> None:
    host.at_start = write_and_fail_on_zfs
    with pytest.raises(ServerError, match="It was not put back on its old files: the copies were changed") as caught:
        setup_move.execute(host.move())
    assert "journalctl -u db.service" in caught.value.hint
    assert "zfs rename tank/mysql tank/mysql-unused" in caught.value.hint
    assert (host.root / "mysql.before-zfs").exists()
    host.at_start = lambda place: None
    go_on()
    check_moved(host)


def test_a_server_that_runs_on_zfs_is_not_put_back_though_systemd_says_that_it_failed(host: MovingHost) -> None:
    def late(place: str) -> None:
        if place.endswith("/data"):
            host.runs_on = place
            raise CommandError("it did not end in time")

    host.at_start = late
    with pytest.raises(ServerError, match="the server runs on ZFS, but setup could not continue"):
        setup_move.execute(host.move())
    host.write()
    go_on()
    check_moved(host)


def test_a_server_that_has_just_started_on_zfs_is_waited_for_before_the_next_setup_looks_for_it(
    host: MovingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup_move.execute(host.move())
    move_state.write(MoveRecord(host.move(), MovePhase.SWITCHED))
    recovering = [MovedServer(ServedPlace.NEW, 7, host.runs_on, False, "active")] * 3
    running = move_state.running_server
    monkeypatch.setattr(move_state, "running_server", lambda move: recovering.pop() if recovering else running(move))
    monkeypatch.setattr(setup_move, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(setup, "gather", lambda *about: recovering and pytest.fail("it was looked for too early"))
    planned: list[MoveStep | None] = []

    def plan_setup(facts: object, answers: object, started: StartedMove) -> SimpleNamespace:
        planned.append(started.decision.step)
        return SimpleNamespace(refusals=("refused",), lacks_move=False)

    monkeypatch.setattr(setup, "plan_setup", plan_setup)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    setup.plan(SetupAnswers("s3://b/p"))
    assert planned == [MoveStep.FINISH]


def put_back_by_hand(host: MovingHost) -> None:
    host.run(["systemctl", "stop", "db"])
    host.run(["zfs", "set", f"mountpoint={host.root}/mysql.on-zfs", NAMES[0]])
    host.datadir.rmdir()
    os.rename(host.root / "mysql.before-zfs", host.datadir)
    (host.options / "zz-zsnapdb-zfs.cnf").unlink()
    host.start()


@pytest.mark.parametrize("at", range(STARTS, STEPS + 1))
def test_old_files_are_not_copied_over_newer_ones(host: MovingHost, at: int) -> None:
    """A person went back by hand after the server had run on ZFS, and the record was still there."""
    host.kill_at = at
    with pytest.raises(Killed):
        setup_move.execute(host.move())
    host.kill_at = -1
    if move_state.recorded() is None or not (host.root / "mysql.before-zfs").exists():
        return
    host.start()
    put_back_by_hand(host)
    before, commands = host.content(NAMES[1]), len(host.commands)
    with pytest.raises(PreflightError, match=r"Nothing is copied over them|they are not copied there"):
        go_on()
    assert host.content(NAMES[1]) == before
    assert [line for line in host.commands[commands:] if line.startswith("systemctl")] == []


def test_a_record_without_phases_proves_nothing_and_its_server_is_left_on_zfs(host: MovingHost) -> None:
    host.kill_at = STARTS + 1
    with pytest.raises(Killed):
        setup_move.execute(host.move())
    host.kill_at = -1
    host.start()
    host.write()
    move_state.journal().write_bytes(TypeAdapter(ServerMove).dump_json(host.move()))
    left = move_state.recorded()
    assert left == MoveRecord(host.move(), MovePhase.UNKNOWN)
    before = host.content(NAMES[1])
    put_back_by_hand(host)
    with pytest.raises(PreflightError, match="nothing proves"):
        go_on()
    assert host.content(NAMES[1]) == before
    host.runs_on = ""
    (host.options / "zz-zsnapdb-zfs.cnf").write_text(host.move().option_file)
    os.rename(host.datadir, host.root / "mysql.before-zfs")
    host.run(["zfs", "set", f"mountpoint={host.datadir}", NAMES[0]])
    host.at_start = fail_on_zfs
    with pytest.raises(ServerError, match="It was not put back"):
        go_on()
    host.at_start = lambda place: None
    go_on()
    check_moved(host)


def test_a_signal_between_stop_and_start_interrupts_nothing(host: MovingHost) -> None:
    ran: list[str] = []

    def run(argv: Sequence[str], **options: float) -> str:
        ran.append(" ".join(argv))
        if argv[:2] in (("systemctl", "stop"), ("systemctl", "start")):
            signal.raise_signal(signal.SIGINT)
        return host.run(argv, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "run", run)
        with pytest.raises(KeyboardInterrupt):
            setup_move.execute(host.move())
    # The signal during the stop is delivered once the server has stopped; it is started again.
    assert host.runs_on == str(host.datadir)
    go_on()
    check_moved(host)


def test_a_signal_after_the_switch_is_delivered_when_the_server_runs_on_zfs(host: MovingHost) -> None:
    def interrupt(place: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        host.at_start = interrupt
        with pytest.raises(KeyboardInterrupt):
            setup_move.execute(host.move())
    finally:
        signal.signal(signal.SIGTERM, before)
    check_moved(host)


def test_a_terminal_that_went_away_does_not_leave_the_server_stopped(host: MovingHost) -> None:
    def gone(_text: str) -> None:
        raise OSError(5, "Input/output error")

    setup_move.execute(host.move(), tell=gone)
    check_moved(host)


def test_a_copy_that_fails_leaves_the_server_running_on_its_files(
    host: MovingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_state, "mounted", list)
    with pytest.raises(Exception, match="is not mounted at"):
        setup_move.execute(host.move())
    assert host.runs_on == str(host.datadir)
    assert "systemctl stop db.service" not in host.commands


def test_a_second_copy_without_room_leaves_the_server_running(host: MovingHost) -> None:
    host.at_start = fail_on_zfs
    with pytest.raises(ServerError, match="runs on its old files again"):
        setup_move.execute(host.move())
    host.free, commands = 10, len(host.commands)
    with pytest.raises(PreflightError, match="are free"):
        go_on()
    assert not [line for line in host.commands[commands:] if "systemctl" in line]


def test_in_datasets_of_others_nothing_is_removed(host: MovingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []
    monkeypatch.setattr(tree_copy, "keep_only", lambda folder, _names: removed.append(folder))
    host.mark = "/var/lib/another"
    with pytest.raises(NotOursError, match="tank/mysql is not ours"):
        setup_move.execute(host.move())
    assert (removed, host.runs_on) == ([], str(host.datadir))


def test_a_server_that_stays_stopped_is_told(host: MovingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise CommandError("the unit is masked")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tree_copy, "copy_entries", full)
    monkeypatch.setattr(host, "start", broken)
    with pytest.raises(OSError, match="No space") as caught:
        setup_move.execute(host.move())
    assert any("the server is stopped" in note and "masked" in note for note in caught.value.__notes__)


def test_another_step_than_the_planned_one_is_not_done(host: MovingHost) -> None:
    with pytest.raises(PreflightError, match="changed since the plan"):
        setup_move.execute(host.move(), MoveStep.START)
    assert host.commands == []


def test_a_record_that_is_no_move_is_named(host: MovingHost) -> None:
    move_state.journal().parent.mkdir()
    move_state.journal().write_text('{"server": 7}')
    with pytest.raises(DamagedError, match=r"move\.json does not describe"):
        move_state.recorded()
