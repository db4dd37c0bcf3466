"""The plan of a setup that moves the files of a server to ZFS."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from tests.unit.support.setup_plans import ANSWERS, ELSEWHERE, FACTS, FILES, SERVER, planned, words
from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.setup.move import MoveDecision, MoveStep, ServerMove
from zsnapdb.planning.setup.plan import (
    SetupWay,
    StartedMove,
    executed,
    plan_setup,
)


def test_a_server_elsewhere_is_moved_and_its_old_files_stay() -> None:
    plan = planned(ELSEWHERE)
    said = words(plan)
    assert plan.way is SetupWay.MOVE
    order = ["systemctl stop mysql.service", "mv -T /var/lib/mysql /var/lib/mysql.before-zfs"]
    order += ["zfs set mountpoint=/var/lib/mysql tank/mysql", "systemctl start mysql.service", "zsnapdb drill main"]
    assert [line for line in said if line in order] == order
    assert not [word for word in said if word.startswith("rm") or "destroy" in word]
    assert "the old files stay in /var/lib/mysql.before-zfs until you remove them" in plan.notes[-1]


@pytest.mark.parametrize("step", [MoveStep.COPY, MoveStep.START])
def test_a_move_that_was_not_allowed_is_shown_and_refused(step: MoveStep) -> None:
    move = planned(ELSEWHERE).move
    assert move is not None
    started = StartedMove(move, MoveDecision(step))
    facts = replace(FACTS, servers=(ELSEWHERE,))
    refused, allowed = (plan_setup(facts, replace(ANSWERS, move=move), started) for move in (False, True))
    assert (refused.lacks_move, len(refused.refusals)) == (True, 1)
    assert "--move" in refused.refusal_hint
    assert (allowed.lacks_move, allowed.refusals, allowed.steps) == (False, (), refused.steps)


@pytest.mark.parametrize("step", [MoveStep.COPY, MoveStep.START])
def test_an_executed_move_says_where_the_files_are(step: MoveStep) -> None:
    move = planned(ELSEWHERE).move
    assert move is not None
    plan = plan_setup(FACTS, replace(ANSWERS, move=True), StartedMove(move, MoveDecision(step)))
    done = executed(plan, 900)
    assert done.server is not None
    assert done.server.pid == 900, "the process of the stopped server is gone"
    assert (done.server.datadir, done.server.dataset) == ("/var/lib/mysql/data", "tank/mysql/data")
    assert done.server.is_on_zfs
    lost = set(plan.notes) - set(done.notes)
    assert all(re.search("are copied|were copied|server stops|interrupted", note) for note in lost)
    assert not [note for note in done.notes if re.search("are copied|were copied|server stops|interrupted", note)]
    assert any("the old files stay in" in note for note in done.notes)
    assert executed(planned(), None) == planned()


def test_a_mount_point_is_not_renamed_and_the_copy_lies_beside_it() -> None:
    plan = planned(replace(ELSEWHERE, files=replace(FILES, is_mount=True)))
    assert plan.move is not None
    assert not [line for line in words(plan) if line.startswith(("mv", "zfs set"))]
    assert (plan.move.datadir, plan.move.places.old) == ("/var/lib/mysql-zfs/data", "/var/lib/mysql")
    assert "AppArmor" in plan.notes[-1]


def test_a_moved_server_keeps_the_names_of_its_binlogs_and_what_its_replicas_depend_on() -> None:
    files = replace(FILES, binlog="/var/log/mysql/mysql-bin", binlog_index="/var/log/mysql/list", has_relay_logs=True)
    for flavour in Flavour:
        move = planned(replace(ELSEWHERE, files=files, flavour=flavour)).move
        assert move is not None
        assert "log_bin = /var/lib/mysql/mysql-bin\nlog_bin_index = /var/lib/mysql/mysql-bin.index" in move.option_file
        assert not [word for word in ("gtid", "binlog_format", "relay_log") if word in move.option_file]
        assert move.listed("/var/log/mysql/mysql-bin.000007\n./mysql-bin.000008\n") == (
            "/var/lib/mysql/mysql-bin.000007\n/var/lib/mysql/mysql-bin.000008\n"
        )
        names = ("mysql-bin.000007", "mysql-bin.state", "mysql-bin.cnf", "binlog.000001")
        assert [move.is_binlog(name) for name in names] == [True, True, False, False]


def test_a_server_without_binlogs_gets_them_by_the_move() -> None:
    move = planned(replace(ELSEWHERE, flavour=Flavour.MARIADB, files=replace(FILES, binlog=""))).move
    assert move is not None
    assert {"binlog_format = ROW", "gtid_strict_mode = ON"} <= set(move.option_file.split("\n"))
    assert (move.binlog_folder, move.is_binlog("binlog.000001")) == ("", False)


def test_a_move_that_was_interrupted_is_planned_again_from_its_own_record_though_no_server_runs() -> None:
    before = planned(ELSEWHERE)
    assert before.move is not None
    facts = replace(FACTS, servers=(), datasets=frozenset({"tank/mysql"}))
    after = plan_setup(facts, ANSWERS, StartedMove(before.move, MoveDecision(MoveStep.COPY)))
    assert (after.move, after.steps, after.refusals) == (before.move, before.steps, before.refusals)
    assert "interrupted" in after.notes[-1]
    assert TypeAdapter(ServerMove).validate_json(TypeAdapter(ServerMove).dump_json(before.move)) == before.move


def test_a_switched_move_is_planned_without_a_stop_and_without_a_copy() -> None:
    before = planned(ELSEWHERE)
    assert before.move is not None
    after = plan_setup(replace(FACTS, servers=()), ANSWERS, StartedMove(before.move, MoveDecision(MoveStep.START)))
    assert (after.move, after.move_step) == (before.move, MoveStep.START)
    assert not [word for word in words(after) if word.startswith(("zfs create", "mv", "systemctl stop"))]


@pytest.mark.parametrize("configured", [None, "instance = { main = {} }\n"])
def test_a_move_whose_server_runs_on_zfs_is_ended_also_if_the_setup_is_refused(configured: str | None) -> None:
    before = planned(ELSEWHERE)
    assert before.move is not None
    facts = replace(FACTS, servers=(SERVER,), configured=configured)
    after = plan_setup(facts, ANSWERS, StartedMove(before.move, MoveDecision(MoveStep.FINISH)))
    assert (after.way, after.server, after.move_step) == (SetupWay.ADOPT, SERVER, MoveStep.FINISH)
    assert "stops nothing" in after.notes[0]
    assert bool(after.refusals) == (configured is not None)
    assert not [word for word in words(after) if word.startswith(("zfs", "mv", "systemctl stop"))]


def test_the_files_of_another_server_are_not_moved_in_the_run_that_ends_a_move() -> None:
    before = planned(ELSEWHERE)
    assert before.move is not None
    other = replace(ELSEWHERE, sockets=("/run/other.sock",))
    facts = replace(FACTS, servers=(SERVER, other))
    started = StartedMove(before.move, MoveDecision(MoveStep.FINISH))
    after = plan_setup(facts, replace(ANSWERS, socket="/run/other.sock"), started)
    assert (after.move_step, after.steps, after.refusal_hint) == (MoveStep.FINISH, (), "run the same setup once more")


def test_a_move_that_cannot_go_on_is_refused_with_its_own_hint() -> None:
    before = planned(ELSEWHERE)
    assert before.move is not None
    started = StartedMove(before.move, MoveDecision(None, "the copies may be newer", "compare them"))
    after = plan_setup(FACTS, ANSWERS, started)
    assert (after.refusals, after.refusal_hint, after.steps) == (("the copies may be newer",), "compare them", ())
