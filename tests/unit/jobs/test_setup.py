"""Setup does exactly the steps that its plan has, and the same setup goes on where one was interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import re
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

from tests.unit.support.drilled import evidence
from zsnapdb.base import files
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ChangedError, CommandError, PreflightError, ServerError
from zsnapdb.cli import setup as setup_cli
from zsnapdb.config.repository import DEFAULT_KEEP
from zsnapdb.config.settings import Settings, load, parse
from zsnapdb.jobs.backup import preflight
from zsnapdb.jobs.backup.preflight import Examined
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.setup import configuration, later_steps
from zsnapdb.jobs.setup import discovery as job
from zsnapdb.jobs.setup import move as setup_files
from zsnapdb.jobs.setup import steps as setup_steps
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.trial import host_needs
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess, RootObservation
from zsnapdb.notify.occasions import send_test
from zsnapdb.planning.backup.dataset_encryption import CLEAR
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
from zsnapdb.planning.setup.plan import PROOF, SetupAction, SetupPlan, SetupStep, SetupWay, StartedMove, plan_setup
from zsnapdb.planning.setup.summary import summarize
from zsnapdb.report.setup import SetupPlanView, SetupView
from zsnapdb.repository import drills, marker
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.crypto_keys import SigningKey
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.repository import Repository
from zsnapdb.zfs import command, datasets, encryption, version
from zsnapdb.zfs.mounts import MountEntry


def hears(settings: Settings, target: str) -> bool:
    """Send the test message as the command does."""
    return not send_test(settings, [target], lambda _: None)


PROCESS = DiscoveredProcess(812, "mysql", "/opt/x/mysqld", ("/run/m.sock",), "/var/lib/mysql/data")


class FakeHost:
    """A host with a pool and one MySQL on it: the accounts of its server, and the commands that were run."""

    def __init__(self, folder: Path) -> None:
        self.configuration = folder / "etc" / "zsnapdb.toml"
        self.answers = SetupAnswers(f"file://{folder / 'backups'}")
        self.passwords: dict[str, str] = {}
        self.statements: list[str] = []
        self.commands: list[str] = []
        self.fails_at = ""

    def plan(self) -> SetupPlan:
        return job.plan(self.answers, self.configuration)

    def setup(self) -> setup_steps.SetupResult:
        return setup_steps.execute(self.plan(), hears=hears)

    def step(self, name: str) -> None:
        """Do what is under way, unless this is where the test interrupts."""
        if self.fails_at and self.fails_at in name:
            raise ServerError(f"interrupted at {name}")

    def files(self) -> dict[str, bytes]:
        folder = self.configuration.parent.parent
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class FakeSession:
    """A session of the fake server. CREATE USER IF NOT EXISTS leaves an account that is there as it is."""

    host: FakeHost

    def __init__(self, server: str) -> None:
        self.account = f"zsnapdb{server.removeprefix('/run/m.sock')}"

    @classmethod
    def open(cls, address: Any, password: Any) -> FakeSession:
        cls.host.step(f"log in as {address.user}")
        session = cls(str(address.socket))
        if address.user != "root" and cls.host.passwords.get(session.account) != password.get_secret_value():
            raise ServerError("access denied")
        return session

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass

    def query(self, sql: str, parameters: Sequence[str] = ()) -> None:
        self.host.step(sql)
        self.host.statements.append(sql)
        if sql.startswith("CREATE USER IF NOT EXISTS zsnapdb@localhost"):
            self.host.passwords.setdefault(self.account, "".join(parameters))


class LookingSession(FakeSession):
    """A session that only looks, before the first change of a setup."""

    @classmethod
    def open(cls, address: Any, password: Any) -> FakeSession:
        session = cls(str(address.socket))
        if address.user != "root" and cls.host.passwords.get(session.account) != password.get_secret_value():
            raise ServerError("access denied")
        return session

    def query(self, sql: str, parameters: Sequence[str] = ()) -> Any:
        assert sql.startswith("SELECT ")
        return [(int(self.account in self.host.passwords),)]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHost:
    """A host on which nothing of zsnapdb is."""
    fake = FakeHost(tmp_path)
    (tmp_path / "backups").mkdir()
    FakeSession.host = fake
    (tmp_path / "cron.d").mkdir()
    for module in (job, layout):
        monkeypatch.setattr(module, "CRON_FOLDER", str(tmp_path / "cron.d"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(discovery, "server_processes", lambda: [PROCESS])
    monkeypatch.setattr(discovery, "seen_by_root", lambda socket: RootObservation(16384, False, False))
    monkeypatch.setattr(job, "greeting", lambda address: "8.4.6")
    monkeypatch.setattr(job, "find_binary", lambda configured, flavour: Path("/opt/x/mysqld"))
    monkeypatch.setattr(job, "mounted", lambda: [MountEntry("/var/lib/mysql/data", "zfs", "tank/mysql/data")])
    monkeypatch.setattr(encryption, "at_rest", lambda names: dict.fromkeys(names, CLEAR))
    monkeypatch.setattr(datasets, "pools", lambda: ["tank"])
    monkeypatch.setattr(datasets, "available", lambda name: 1 << 40)
    monkeypatch.setattr(datasets, "exists", lambda name: False)
    monkeypatch.setattr(move_state, "journal", lambda: tmp_path / "no-move.json")
    monkeypatch.setattr(version, "kernel_release", lambda: (2, 3, 4))
    monkeypatch.setattr(setup_steps, "Session", FakeSession)
    monkeypatch.setattr(later_steps, "Session", LookingSession)
    monkeypatch.setattr(preflight, "examine", lambda instance, session: Examined((), None))
    monkeypatch.setattr(later_steps, "moved_fitness", lambda session, socket: [])
    monkeypatch.setattr(host_needs, "judge_host", lambda *about, **more: [])
    monkeypatch.setattr(host_needs, "judge_room", lambda *about: [])
    monkeypatch.setattr(host_needs, "referenced", lambda volumes: 0)
    monkeypatch.setattr(setup_steps, "exclusive", lambda name, doing: (tmp_path / "lock").open("a"))

    def run(argv: Sequence[str]) -> str:
        fake.step(" ".join(argv))
        fake.commands.append(" ".join(argv))
        return ""

    monkeypatch.setattr(command, "run", run)
    return fake


def test_setup_leaves_an_identity_a_configuration_an_account_and_a_repository_that_belong_together(
    host: FakeHost,
) -> None:
    result = host.setup()
    settings = load(host.configuration)
    encryption = settings.repository["backups"].encryption
    assert encryption.recipients == (result.recipient,)
    assert encryption.identity_file == host.configuration.parent / "identity"
    assert encryption.signing_key_file == host.configuration.parent / "signing-key"
    assert SigningKey.read(host.configuration.parent / "signing-key").public == result.signer
    instance = settings.instance["main"]
    assert (instance.user, str(instance.socket)) == ("zsnapdb", "/run/m.sock")
    assert host.passwords == {"zsnapdb": instance.password().get_secret_value()}
    assert len(host.passwords["zsnapdb"]) >= 32
    assert {oct(file.stat().st_mode & 0o777) for file in host.configuration.parent.iterdir()} == {"0o600"}
    assert sorted(name for name in host.files() if name.startswith("backups/")) == [
        "backups/.replacing-lock",
        "backups/zsnapdb.json",
    ]
    text = SetupView(result).text()
    assert f"its recipient is {result.recipient}" in text
    assert f'signers = ["{result.signer}"]' in text
    assert "keep a copy outside this host" in text
    assert "nothing is left to do" not in text
    assert (host.configuration.parent / "identity").read_text().split()[-1] not in text, "the secret is not printed"
    assert host.passwords["zsnapdb"] not in SetupView(result).document() + SetupPlanView(host.plan()).document()


def test_result_names_the_present_process_and_next_commands(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host.plan()
    assert made.server is not None
    made = replace(made, server=replace(made.server, has_binlog=True))
    monkeypatch.setattr(discovery, "server_processes", lambda: [replace(PROCESS, pid=900)])
    text = SetupView(setup_steps.execute(made)).text()
    assert "process 900" in text
    _, _, shown = text.partition("\nnext:\n")
    for command_name in ("status main", "binlog find main", "undo main", "rescue main", "rewind main"):
        assert f"  zsnapdb {command_name} " in shown, "the commands are the last lines"


def test_result_without_keys_and_steps_says_that_nothing_is_left(host: FakeHost) -> None:
    host.answers = replace(host.answers, encrypt=False, sign=False)
    assert "nothing is left to do\nnext:" in SetupView(host.setup()).text()


def test_question_follows_a_short_summary_of_the_effects(host: FakeHost) -> None:
    shown = SetupPlanView(host.plan()).question().partition("\nin short:\n")[2].splitlines()
    assert shown[0] == "  the server keeps running, and its files stay where they are"
    assert f"the identity {host.configuration.parent / 'identity'}" in shown[1]
    assert "the database account zsnapdb@localhost" in shown[1]
    assert len(shown) <= 6


@pytest.mark.parametrize(
    ("actions", "line"),
    [
        ((SetupAction.BINLOG,), "the server restarts once"),
        ((None, SetupAction.CONFIGURATION, None), "you do steps 1, 3 yourself"),
        (tuple(PROOF), "then setup checks everything"),
    ],
)
def test_summary_names_restarts_and_steps_of_the_user(
    host: FakeHost, actions: tuple[SetupAction | None, ...], line: str
) -> None:
    made = replace(host.plan(), steps=tuple(SetupStep("step", action=action) for action in actions))
    assert [text for text in summarize(made) if text.startswith(line)]


def test_setup_prints_every_configured_signer(host: FakeHost) -> None:
    own = host.setup().signer
    signers = f'signers = ["{SigningKey.new().public}", "{own}"]'
    text = host.configuration.read_text()
    host.configuration.write_text(text.replace("signing_key_file =", f"{signers}\nsigning_key_file ="))
    shown = SetupView(host.setup()).text()
    assert signers in shown
    assert "believes only what the keys of these signers sign" in shown


def test_what_the_plan_shows_is_what_setup_does(host: FakeHost) -> None:
    shown = {line for step in host.plan().steps if step.action is not None for line in step.lines}
    host.setup()
    file = host.configuration.parent / "main.password"
    done = {f"{text.replace('%s', f'<the password in {file}>')};" for text in host.statements} | set(host.commands)
    own = ("init backups", "doctor main", "backup main", "drill main")
    assert done == shown - {f"zsnapdb {words} --config {host.configuration}" for words in own}


@pytest.mark.parametrize("where", ["log in as root", "CREATE USER", "GRANT", "log in as zsnapdb", "init"])
def test_a_setup_that_was_interrupted_goes_on_and_ends_like_any_other(
    host: FakeHost, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.fails_at = where
    with monkeypatch.context() as patched:
        if where == "init":
            patched.setattr(init, "init", lambda settings, name: host.step("init"))
        with pytest.raises(ServerError, match="interrupted"):
            host.setup()
    before = {name: body for name, body in host.files().items() if re.match(r"etc/[^.]", name)}
    host.fails_at = ""
    result = host.setup()
    after = host.files()
    assert {name: after[name] for name in before} == before, "keys and passwords are not made twice"
    assert load(host.configuration).repository["backups"].encryption.recipients == (result.recipient,)
    assert host.passwords == {"zsnapdb": (host.configuration.parent / "main.password").read_text().strip()}
    assert "backups/zsnapdb.json" in after


def test_a_setup_that_ended_can_run_again_and_changes_nothing(host: FakeHost) -> None:
    host.setup()
    before, accounts = host.files(), dict(host.passwords)
    host.setup()
    assert (host.files(), host.passwords) == (before, accounts)


def test_setup_sees_whether_a_drill_of_this_host_has_passed(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_drill() -> bool:
        return SetupAction.DRILL in [step.action for step in host.plan().steps]

    def store(outcome: Outcome, drill_id: str) -> None:
        drills.write(repository, evidence(outcome, repository.id, drill_id))

    host.setup()
    assert has_drill()
    own = Instance.of(load(host.configuration), "main")
    repository, ids = own.open_repository(), [f"20261123T00000{number}Z-000{number}" for number in range(3)]
    known: list[str] = []
    monkeypatch.setattr(host_backup_record, "drilled_here", lambda instance, repository: tuple(known))
    store(Outcome.PASSED, ids[0])
    assert has_drill(), "another host ran it"
    store(Outcome.FAILED, ids[1])
    known += [ids[1], ids[2]]
    assert has_drill(), "it did not pass, or its evidence is gone"
    store(Outcome.PASSED, ids[2])
    assert not has_drill()


def test_an_account_that_others_made_is_not_taken_over(host: FakeHost) -> None:
    host.passwords["zsnapdb"] = "theirs"
    with pytest.raises(PreflightError, match="was there before"):
        host.setup()
    assert (host.passwords, host.files(), host.statements) == ({"zsnapdb": "theirs"}, {}, [])


def test_a_plan_changes_nothing_and_shows_every_step(host: FakeHost) -> None:
    view = SetupPlanView(host.plan())
    assert not host.configuration.parent.exists()
    for word in ("mysql 8.4.6, process 812", "tank/mysql/data: they stay there", "zsnapdb drill main", "GRANT "):
        assert word in view.text()
    assert json.loads(view.document())["server"]["flavour"] == "mysql"


def test_what_a_user_changed_in_the_configuration_stays(host: FakeHost) -> None:
    host.setup()
    with host.configuration.open("a") as file:
        file.write("# mine\n")
    changed = host.configuration.read_text().replace("daily = 14", "daily = 30").replace('"15 1 * * *"', '"15 2 * * *"')
    host.configuration.write_text(changed.replace('drill = { cron = "30 5 * * 0" }\n', ""))
    before = host.files()
    notes = host.plan().notes
    assert any('instance.main.agent: backup = { cron = "15 2 * * *"' in note for note in notes)
    assert {"  = instance.main.agent.drill was removed and stays out", "  = [instance.main.keep] stays"} <= set(notes)
    host.setup()
    assert host.files() == before


def test_configuration_of_a_user_is_taken_over(host: FakeHost) -> None:
    url = host.answers.repository
    own = (
        f'# by hand\n[instance.main]\nsocket = "/run/m.sock"  # mine\nrepository = "r"\n[repository.r]\nurl = "{url}"\n'
    )
    host.configuration.parent.mkdir()
    host.configuration.write_text(own)
    host.configuration.chmod(0o640)
    planned = host.plan()
    assert '  + backup = { cron = "15 1 * * *", jitter = "10m" }' in planned.notes
    host.setup()
    settings = load(host.configuration)
    assert (list(settings.repository), settings.instance["main"].agent.backup is not None) == (["r"], True)
    assert host.passwords == {"zsnapdb": settings.instance["main"].password().get_secret_value()}
    lines = iter(host.configuration.read_text().splitlines())
    assert all(line in lines for line in own.splitlines())
    assert [file.read_text() for file in host.configuration.parent.glob("zsnapdb.toml.before-*")] == [own]
    assert host.configuration.stat().st_mode & 0o777 == 0o640
    before = host.files()
    host.setup()
    assert host.files() == before


def test_another_repository_is_refused_until_the_instance_is_removed(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "exclusive", lambda name, doing: (tmp_path / "lock").open("a"))
    monkeypatch.setattr(catalogue, "listing", lambda settings, host: [])
    monkeypatch.setattr(configuration, "with_volumes", lambda instance: instance.with_volumes({"data": "t/d"}))
    monkeypatch.setattr(configuration, "UNIT_FILE", str(tmp_path / "no-unit"))
    host.setup()
    before = host.files()
    (tmp_path / "elsewhere").mkdir()
    first, host.answers = host.answers, replace(host.answers, repository=f"file://{tmp_path / 'elsewhere'}")
    with pytest.raises(PreflightError, match=f"go to {first.repository}, and the answers say") as caught:
        host.setup()
    assert f"`zsnapdb setup --remove --instance main --config {host.configuration}`" in str(caught.value.hint)
    assert host.files() == before
    configuration.execute_removal(configuration.find_removal("main", host.configuration))
    host.setup()
    assert load(host.configuration).repository["backups"].url == host.answers.repository


def test_configuration_that_changed_since_the_plan_is_not_replaced(host: FakeHost) -> None:
    planned = host.plan()
    host.configuration.parent.mkdir()
    host.configuration.write_text("[site]\n")
    with pytest.raises(ChangedError, match="was changed since the plan"):
        setup_steps.execute(planned)
    assert host.configuration.read_text() == "[site]\n"
    host.setup()
    assert host.configuration.read_text().startswith("[site]\n")


@pytest.mark.parametrize("own", ["", '[instance.main]\nrepository = "r"\n'])
@pytest.mark.parametrize("killed_after", range(12))
def test_setup_killed_at_a_write_leaves_a_whole_file_and_goes_on(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, own: str, killed_after: int
) -> None:
    if own:
        host.configuration.parent.mkdir()
        host.configuration.write_text(own)
    written: list[Path] = []
    whole = files.replace

    def until_killed(file: Path, content: bytes, mode: int = 0o600) -> None:
        if len(written) == killed_after:
            raise KeyboardInterrupt
        written.append(file)
        whole(file, content, mode)

    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", until_killed)
        with contextlib.suppress(KeyboardInterrupt):
            host.setup()
    if host.configuration.exists() and host.configuration.read_text() != own:
        load(host.configuration)
    host.setup()
    lines = host.configuration.read_text()
    for key in ("socket", "last", "snapshot", "prune", "url", "reap"):
        assert f"\n{key} = " in lines
    before = host.files()
    host.setup()
    assert host.files() == before


SECOND = DiscoveredProcess(900, "mysql", "/opt/x/mysqld", ("/run/second.sock",), "/var/lib/mysql/data")


@pytest.fixture
def second(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> SetupAnswers:
    """A second server on a host that setup has protected, and the answers for it."""
    host.setup()
    monkeypatch.setattr(discovery, "server_processes", lambda: [PROCESS, SECOND])
    return replace(host.answers, instance="shop", socket="/run/second.sock")


def test_a_second_instance_is_added_and_all_that_is_there_stays(host: FakeHost, second: SetupAnswers) -> None:
    own = "\n[site]  # mine\ncontacts = ['me']\n"
    host.configuration.write_text(host.configuration.read_text() + own)
    host.configuration.chmod(0o640)
    first, host.answers = host.configuration.read_text(), second
    host.setup()
    text, settings = host.configuration.read_text(), load(host.configuration)
    assert text.startswith(first)
    assert (list(settings.instance), list(settings.repository)) == (["main", "shop"], ["backups"])
    assert str(settings.instance["shop"].socket) == "/run/second.sock"
    assert settings.instance["shop"].agent.backup is not None
    assert host.configuration.stat().st_mode & 0o777 == 0o640
    host.setup()
    assert host.configuration.read_text() == text, "the same setup changes nothing"


def test_a_second_configuration_that_the_agent_of_this_host_would_not_read_is_refused(
    host: FakeHost, second: SetupAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = tmp_path / "zsnapdb-agent.service"
    unit.write_text(f'ExecStart="/opt/zsnapdb" "agent" "--config" "{host.configuration}"\n')
    monkeypatch.setattr(job, "UNIT_FILE", str(unit))
    other = job.plan(second, tmp_path / "other.toml")
    assert f"the agent of this host reads {host.configuration}" in other.refusals[0]
    assert other.refusal_hint == f"add the instance to that: --config {host.configuration}"
    assert job.plan(second, host.configuration).refusals == ()
    unit.write_text('ExecStart="/opt/zsnapdb" "agent" "--config" "/nowhere"\n')
    assert job.plan(second, tmp_path / "other.toml").refusals == (), "that agent has nothing to do"


def test_an_instance_that_is_given_up_leaves_the_other_its_repository_and_all_data_and_keys(
    host: FakeHost, second: SetupAnswers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(configuration, "exclusive", lambda name, doing: (tmp_path / "lock").open("a"))
    monkeypatch.setattr(catalogue, "listing", lambda settings, host: [])
    volumes = {"data": "tank/mysql/data"}
    monkeypatch.setattr(configuration, "with_volumes", lambda instance: instance.with_volumes(volumes))
    monkeypatch.setattr(configuration, "UNIT_FILE", str(tmp_path / "no-unit"))
    host.answers = second
    host.setup()
    both = host.configuration.read_text()
    planned = configuration.find_removal("main", host.configuration)
    assert host.configuration.read_text() == both
    configuration.execute_removal(planned)
    settings = load(host.configuration)
    assert (list(settings.instance), list(settings.repository)) == (["shop"], ["backups"])
    left = "\n".join(line for step in planned.steps if step.action is None for line in (step.title, *step.lines))
    assert "DROP USER zsnapdb@localhost" in left
    assert "zfs list -H -o name -d 1 -t snapshot,bookmark tank/mysql/data | grep" in left
    assert f"Keep {host.configuration.parent / 'identity'} as long as one backup is kept" in left
    last = configuration.find_removal("shop", host.configuration)
    configuration.execute_removal(last)
    configuration.execute_removal(last)
    names = {file.name for file in host.configuration.parent.iterdir()}
    assert not host.configuration.exists()
    assert {"identity", "main.password", "shop.password"} <= names
    kept = [file.read_text() for file in host.configuration.parent.glob("zsnapdb.toml.before-*")]
    assert both in kept
    assert (host.configuration.parent.parent / "backups" / "zsnapdb.json").exists()
    host.setup()
    assert list(load(host.configuration).instance) == ["shop"], "a setup begins anew"


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
