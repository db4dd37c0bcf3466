"""Setup checks the conditions of all its steps before it changes anything."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tests.unit.support.setup_host import PROCESS, FakeHost, hears
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import CommandError, PreflightError, ServerError, UsageError
from zsnapdb.cli import setup as setup_cli
from zsnapdb.config.repository import DEFAULT_KEEP
from zsnapdb.config.settings import Settings, load, parse
from zsnapdb.jobs.backup import preflight
from zsnapdb.jobs.backup.preflight import Examined
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.setup import discovery as job
from zsnapdb.jobs.setup import later_steps
from zsnapdb.jobs.setup import move as setup_files
from zsnapdb.jobs.setup import steps as setup_steps
from zsnapdb.jobs.trial import host_needs
from zsnapdb.mysql.process import discovery
from zsnapdb.planning.backup.fitness import unfit, warning
from zsnapdb.planning.setup import layout
from zsnapdb.planning.setup.facts import (
    FoundFiles,
    FoundServer,
    LaterFacts,
    SetupAnswers,
    SetupFacts,
    SetupRefusal,
)
from zsnapdb.planning.setup.move import MoveDecision, MoveStep, planned_move
from zsnapdb.planning.setup.plan import SetupAction, SetupPlan, SetupStep, SetupWay, StartedMove, plan_setup
from zsnapdb.repository import marker
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import command
from zsnapdb.zfs.mounts import MountEntry


@pytest.mark.parametrize(("ends", "is_set_up"), [(0, True), (1, False)])
def test_whoever_hears_of_failures_hears_of_a_test_before_anything_is_changed(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: int, is_set_up: bool
) -> None:
    def parsed(text: str, name: str) -> Settings:
        settings = parse(text, name)
        here = settings.notifications.model_copy(update={"state": tmp_path / "notifications"})
        return settings.model_copy(update={"notifications": here})

    monkeypatch.setattr(later_steps, "parse", parsed)
    program = tmp_path / "tell"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/heard\nexit {ends}\n")
    program.chmod(0o755)
    assert any("no failure is reported" in note for note in host.plan().notes)
    host.answers = replace(host.answers, notify=str(program))
    planned = host.plan()
    assert f"{program} hears of failures, and of a test before the rest" in planned.notes
    with contextlib.nullcontext() if is_set_up else pytest.raises(CommandError, match="nothing was changed"):
        setup_steps.execute(planned, hears=hears)
    assert "This is a test" in (tmp_path / "heard").read_text()
    assert host.configuration.exists() == is_set_up
    if is_set_up:
        assert load(host.configuration).notifications.to["admin"].script == (str(program),)
        (tmp_path / "heard").unlink()
        host.setup()
        assert not (tmp_path / "heard").exists(), "the same setup tests it once"


@pytest.mark.parametrize("name", ["", "no such", "a.b", "Main", "../x", "a" * 49, 'a"]\n'])
def test_setup_refuses_an_invalid_instance_name(host: FakeHost, name: str) -> None:
    host.answers = replace(host.answers, instance=name)
    with pytest.raises(UsageError, match="is not valid; use at most 48"):
        host.plan()


@pytest.mark.parametrize("secret", ["https://hooks.example.net/T0/part", "http://hooks.example.net:8080/?part#part"])
def test_setup_message_hides_the_address_of_a_webhook(host: FakeHost, secret: str) -> None:
    host.answers = replace(host.answers, notify=secret)
    planned = host.plan()
    with pytest.raises(CommandError, match=r"did not reach the webhook at hooks\.example\.net") as caught:
        setup_steps.execute(planned, hears=lambda _settings, _target: False)
    assert "part" not in str(caught.value)
    assert [note for note in planned.notes if "hooks.example.net" in note and "part" not in note]


def unfit_server(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    findings = (unfit("tables", "is unfit", "hint"), warning("x", "is a warning"))
    monkeypatch.setattr(preflight, "examine", lambda instance, session: Examined(findings, None))


def lost_server_program(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    monkeypatch.setattr(host_needs, "judge_host", lambda *about, **more: [unfit("drill", "is unfit", "hint")])


def full_pool(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    monkeypatch.setattr(host_needs, "judge_room", lambda *about: [unfit("drill", "is unfit", "hint")])


def lost_credentials(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    host.answers = replace(host.answers, repository="s3://b/p", credentials_file="/nowhere/is unfit")


def account_of_others(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    host.passwords["zsnapdb"] = "is unfit"
    monkeypatch.setattr(later_steps, "account_refusal", lambda account, error: SetupRefusal("is unfit", "hint"))


def wrong_login(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    def refuses(instance: Instance) -> None:
        raise ServerError(f"{instance.settings.user} is unfit")

    host.configuration.parent.mkdir()
    host.configuration.write_text('[instance.main]\nsocket = "/run/m.sock"\nuser = "x"\n')
    monkeypatch.setattr(Instance, "session", refuses)


def identity_of_another_host(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    host.setup()
    for file in host.configuration.parent.iterdir():
        file.unlink()
    Path(layout.cron_file("main")).unlink()
    host.passwords.clear()
    host.statements.clear()
    monkeypatch.setattr(Repository, "backup_ids", lambda self, instance: ["a"])


def folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    file = host.configuration.parent.parent / "is unfit"
    file.write_text("")
    host.configuration = file / "zsnapdb.toml"


def masked_unit(monkeypatch: pytest.MonkeyPatch, host: FakeHost) -> None:
    gather = job.gather

    def with_systemd(*about: Any) -> SetupFacts:
        return replace(gather(*about), has_systemd=True, unit=None)

    monkeypatch.setattr(job, "gather", with_systemd)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/x")
    monkeypatch.setattr(later_steps, "UNIT_FOLDERS", (str(host.configuration.parent.parent),))
    (host.configuration.parent.parent / layout.UNIT).symlink_to("/dev/null")


UNMET = SetupRefusal("unmet", "hint")
BROKEN = {
    "identity": (identity_of_another_host, "is not an identity that opens them"),
    "repository": (lost_credentials, "is unfit"),
    "files": (folder_that_cannot_be_written, "is unfit"),
    "account": (account_of_others, "is unfit"),
    "login": (wrong_login, "is unfit"),
    "schedule": (masked_unit, "is masked"),
    "fitness": (unfit_server, "is unfit"),
    "drill": (lost_server_program, "is unfit"),
    "room": (full_pool, "is unfit"),
}
"""For each condition of a later step, a host that does not meet it."""
BY_PLAN = {
    SetupAction.MOVE: "the plan refuses files that cannot be moved, and a pool without room",
    SetupAction.BINLOG: "the plan refuses a server whose binlogs setup cannot turn on",
    SetupAction.SIGNING_KEY: "the condition `files` has its folder",
}


def test_each_step_has_a_condition_that_is_checked_before_the_first_step() -> None:
    assert {one.name for one in later_steps.CONDITIONS} == set(BROKEN)
    assert {one.step for one in later_steps.CONDITIONS} | set(BY_PLAN) == set(SetupAction)


@pytest.mark.parametrize("name", BROKEN)
def test_unmet_condition_of_a_later_step_refuses_before_any_change(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    breaks, why = BROKEN[name]
    breaks(monkeypatch, host)
    before = host.files()
    planned = host.plan()
    assert why in planned.refusals[0]
    assert (planned.steps, bool(planned.refusal_hint)) == ((), True)
    with pytest.raises(PreflightError, match=why):
        setup_steps.execute(planned, hears=hears)
    assert (host.files(), host.commands, host.statements) == (before, [], [])


@pytest.mark.parametrize("name", ["fitness", "drill", "room"])
def test_unmet_condition_of_a_step_of_the_user_is_a_note(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    BROKEN[name][0](monkeypatch, host)
    host.answers = replace(host.answers, proof=False)
    planned = host.plan()
    assert planned.refusals == ()
    assert any(note.startswith("later: ") and "is unfit" in note for note in planned.notes)


@pytest.mark.parametrize(("step", "allowed", "runs"), [("start", True, 1), ("start", False, 0), ("copy", True, 0)])
def test_refusal_does_not_keep_a_server_stopped(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, step: str, allowed: bool, runs: int
) -> None:
    """An interrupted move left the server stopped on its copies: setup starts it, and does no other step."""
    files = FoundFiles("mysql.service", option_folder="/etc/mysql/conf.d")
    server = FoundServer(1, "mysql", "/m", ("/run/m.sock",), "/var/lib/mysql", Flavour.MYSQL, "ext4", files=files)
    move = planned_move(server, files, "tank/mysql", (2, 3, 4))
    facts = replace(job.gather(host.configuration, host.answers), servers=(), later=LaterFacts((UNMET,)))
    started = StartedMove(move, MoveDecision(MoveStep(step)))
    planned = plan_setup(facts, replace(host.answers, move=allowed), started)
    assert (planned.refusals, planned.steps) == (("unmet",), ())
    assert any("still starts the server" in note for note in planned.notes) == bool(runs)
    done: list[MoveStep] = []
    monkeypatch.setattr(setup_files, "execute", lambda move, step, tell: done.append(step))
    with pytest.raises(PreflightError, match="unmet"):
        setup_steps.execute(planned)
    assert done == [MoveStep.START] * runs
    assert not host.configuration.exists()


@pytest.mark.parametrize(("used", "is_noted"), [(1 << 20, False), (1 << 60, True)])
def test_folder_that_may_be_too_small_is_a_note(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, used: int, is_noted: bool
) -> None:
    monkeypatch.setattr(host_needs, "referenced", lambda volumes: used)
    assert any("before their compression" in note for note in host.plan().notes) == is_noted


def test_credentials_of_the_shell_are_a_note(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.answers = replace(host.answers, repository="s3://b/p")
    monkeypatch.setattr(later_steps, "CONDITIONS", ())
    monkeypatch.setattr(later_steps, "_stored", lambda ahead: (False, 0, ""))
    for value in ("", "AKIA"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", value) if value else monkeypatch.delenv("AWS_ACCESS_KEY_ID", False)
        assert any("of this shell" in note for note in host.plan().notes) == bool(value)


def test_backups_in_the_repository_open_the_retention(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    host.setup()
    host.configuration.unlink()
    monkeypatch.setattr(Repository, "backup_ids", lambda self, instance: ["a", "b"] if instance == "main" else [])
    planned = host.plan()
    assert any("the repository already has 2 backups of main" in note for note in planned.notes)
    host.setup()
    own = load(host.configuration).instance["main"]
    assert (own.keep, own.agent.prune, own.agent.backup is not None) == (None, None, True)
    assert " prune main " not in Path(layout.cron_file("main")).read_text()


@pytest.mark.parametrize(("made_on", "is_other"), [("", False), (socket.gethostname(), False), ("db9", True)])
def test_backups_of_another_host_need_a_decision(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, made_on: str, is_other: bool
) -> None:
    host.setup()
    host.configuration.unlink()
    monkeypatch.setattr(Repository, "backup_ids", lambda self, instance: ["a", "b"] if instance == "main" else [])
    monkeypatch.setattr(Summary, "read", lambda repository, instance, name: SimpleNamespace(host=made_on))
    planned = host.plan()
    assert bool(planned.refusals) == is_other
    if is_other:
        assert "2 backups of main, made by host db9" in planned.refusals[0]
        own = SimpleNamespace(instance="main", repository_id="", url="")
        with monkeypatch.context() as patch:
            patch.setattr(Instance, "expected_backups", lambda self: (own,))
            assert host.plan().refusals == (), "this host made some of these backups"
        host.answers = replace(host.answers, take_over=True)
        assert host.plan().refusals == ()


@pytest.mark.parametrize("wrong", ["no credentials", "ignored condition"])
def test_a_store_that_the_last_step_cannot_use_refuses_before_anything_is_changed(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    if wrong == "no credentials":
        host.answers = replace(host.answers, repository="s3://b/p", credentials_file="/nowhere/credentials")
    else:
        objection = PreflightError("the store ignored a conditional write (If-Match)")
        monkeypatch.setattr(marker, "prove_replacements", lambda objects: (_ for _ in ()).throw(objection))
    before = host.files()
    with pytest.raises(PreflightError, match=r"/nowhere/credentials|If-Match"):
        host.setup()
    assert (host.files(), host.commands, host.statements) == (before, [], [])


def test_a_configuration_of_comments_alone_is_replaced(host: FakeHost) -> None:
    host.configuration.parent.mkdir()
    host.configuration.write_text("# The configuration of zsnapdb.\n\n")
    host.answers = replace(host.answers, encrypt=False)
    host.setup()
    assert load(host.configuration).repository["backups"].encryption.recipients == ()


def test_an_answer_that_makes_no_valid_configuration_leaves_no_file(host: FakeHost) -> None:
    host.answers = replace(host.answers, repository="ftp://x")
    with pytest.raises(Exception, match="neither s3://"):
        host.setup()
    assert host.files() == {}


def test_files_that_must_be_moved_first_leave_the_host_as_it_is(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "mounted", lambda: [MountEntry("/", "ext4", "/dev/sda1")])
    movable = FoundFiles("mysql.service", option_folder="/etc/mysql/conf.d")
    monkeypatch.setattr(setup_files, "files_of", lambda *about: movable)
    with pytest.raises(PreflightError, match="must be stopped to move them"):
        host.setup()
    answers = {"Stop the server and move its files to ZFS?": False}
    monkeypatch.setattr(typer, "confirm", lambda question, **_: answers[question])
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: "")
    refused = setup_cli._completed(host.answers, host.plan(), host.configuration)
    assert refused.refusals == host.plan().refusals
    with pytest.raises(PreflightError, match="must be stopped to move them"):
        setup_cli._carry_out(refused, yes=False, plan=False, json=False)
    answers = {"Stop the server and move its files to ZFS?": True}
    allowed = setup_cli._completed(host.answers, host.plan(), host.configuration)
    assert (allowed.answers.move, allowed.refusals) == (True, ())
    assert (host.files(), host.commands) == ({}, [])


def test_only_root_sees_every_server(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PreflightError, match="sockets of every server"):
        host.plan()


def test_a_server_that_says_nothing_is_known_by_its_program(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    process = replace(PROCESS, sockets=(), program="/usr/sbin/mariadbd")
    monkeypatch.setattr(discovery, "server_processes", lambda: [process])
    (server,) = job.gather(host.configuration, host.answers).servers
    assert (server.flavour, server.version, server.page_size) == (Flavour.MARIADB, None, None)


@pytest.mark.parametrize(("by_loader", "binary"), [(False, "/opt/x/mysqld"), (True, "")])
def test_the_program_that_runs_is_configured_where_another_one_would_be_found(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, by_loader: bool, binary: str
) -> None:
    """A program that needs the loader does not start by its name: it is left to the person."""
    monkeypatch.setattr(job, "find_binary", lambda configured, flavour: Path("/usr/sbin/mysqld"))
    monkeypatch.setattr(discovery, "server_processes", lambda: [replace(PROCESS, is_by_loader=by_loader)])
    (server,) = job.gather(host.configuration, host.answers).servers
    assert server.binary == binary
    host.setup()
    assert str(load(host.configuration).instance["main"].server.binary or "") == binary


def test_the_unit_starts_the_program_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "zsnapdb"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "setup"])
    assert job.own_command() == (str(program),)
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python3/zsnapdb/__main__.py", "setup"])
    assert job.own_command() == (sys.executable, "-m", "zsnapdb")


def test_a_unit_that_does_not_start_is_told_with_the_place_of_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(argv: Sequence[str]) -> str:
        raise CommandError(f"{argv[0]} ended with 1", hint="see `zpool status`")

    monkeypatch.setattr(command, "run", run)
    step = SetupStep("Run all jobs", ("systemctl enable x",), action=SetupAction.SCHEDULE)
    server = FoundServer(1, "mysql", "/m", ("/s",), "/d", Flavour.MYSQL, "zfs", "tank/d")
    plan = SetupPlan(SetupWay.ADOPT, server, SetupAnswers(f"file://{tmp_path}"), "/etc/z.toml", None, steps=(step,))
    monkeypatch.setattr(setup_steps, "exclusive", lambda name, doing: contextlib.nullcontext())
    with pytest.raises(CommandError, match="systemctl ended with 1") as caught:
        setup_steps.execute(plan)
    assert "journalctl -u zsnapdb-agent.service" in str(caught.value.hint)


def test_sizing_assumes_the_retention_that_setup_writes(host: FakeHost) -> None:
    host.setup()
    keep = load(host.configuration).instance["main"].keep
    assert keep is not None
    assert keep.model_dump(exclude_unset=True) == DEFAULT_KEEP.model_dump(exclude_unset=True)
