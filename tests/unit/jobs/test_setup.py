"""Setup does exactly the steps that its plan has, and the same setup goes on where one was interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.unit.support.drilled import evidence
from zsnapdb.base import files
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import CommandError, PreflightError, ServerError
from zsnapdb.cli import setup as setup_cli
from zsnapdb.config.settings import Settings, load, parse
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.setup import configuration
from zsnapdb.jobs.setup import discovery as job
from zsnapdb.jobs.setup import move as setup_files
from zsnapdb.jobs.setup import steps as setup_steps
from zsnapdb.jobs.steps import move_state
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess, RootObservation
from zsnapdb.notify.occasions import send_test
from zsnapdb.planning.backup.dataset_encryption import CLEAR
from zsnapdb.planning.repository.sizing import DEFAULT_KEEP
from zsnapdb.planning.setup import layout
from zsnapdb.planning.setup.facts import FoundFiles, FoundServer, SetupAnswers
from zsnapdb.planning.setup.plan import SetupAction, SetupPlan, SetupStep, SetupWay
from zsnapdb.report.setup import SetupPlanView, SetupView
from zsnapdb.repository import drills, marker
from zsnapdb.repository.crypto_keys import SigningKey
from zsnapdb.repository.drills import Outcome
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
    assert (host.configuration.parent / "identity").read_text().split()[-1] not in text, "the secret is not printed"
    assert host.passwords["zsnapdb"] not in SetupView(result).document() + SetupPlanView(host.plan()).document()


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
    before = {name: body for name, body in host.files().items() if name.startswith("etc/")}
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


def test_setup_sees_in_the_repository_whether_a_drill_has_passed(host: FakeHost) -> None:
    def has_drill() -> bool:
        return SetupAction.DRILL in [step.action for step in host.plan().steps]

    host.setup()
    assert has_drill()
    repository = Instance.of(load(host.configuration), "main").open_repository()
    drills.write(repository, evidence(Outcome.FAILED, repository.id))
    assert has_drill(), "it did not pass"
    drills.write(repository, evidence(Outcome.PASSED, repository.id, "20261123T000000Z-0002"))
    assert not has_drill()


def test_an_account_that_others_made_is_not_taken_over(host: FakeHost) -> None:
    host.passwords["zsnapdb"] = "theirs"
    with pytest.raises(ServerError, match="was there before"):
        host.setup()
    assert host.passwords == {"zsnapdb": "theirs"}


def test_a_plan_changes_nothing_and_shows_every_step(host: FakeHost) -> None:
    view = SetupPlanView(host.plan())
    assert not host.configuration.parent.exists()
    for word in ("mysql 8.4.6, process 812", "tank/mysql/data: they stay there", "zsnapdb drill main", "GRANT "):
        assert word in view.text()
    assert json.loads(view.document())["server"]["flavour"] == "mysql"


def test_tables_that_a_person_changed_are_not_overwritten_and_a_comment_is_no_change(host: FakeHost) -> None:
    host.setup()
    with host.configuration.open("a") as file:
        file.write("# mine\n")
    before = host.files()
    host.setup()
    assert host.files() == before
    changed = host.configuration.read_text().replace("daily = 14", "daily = 30")
    host.configuration.write_text(changed)
    with pytest.raises(PreflightError, match="somebody changed it since"):
        host.setup()
    assert host.configuration.read_text() == changed


def test_other_words_replace_what_setup_wrote_keep_it_and_show_the_difference(host: FakeHost, tmp_path: Path) -> None:
    host.setup()
    first = host.configuration.read_bytes()
    places = [f"file://{tmp_path / name}" for name in ("backups", "elsewhere", "third")]
    for place in places[1:]:
        Path(place.removeprefix("file://")).mkdir()
        before = load(host.configuration).repository["backups"].url
        host.answers = replace(host.answers, repository=place)
        planned = host.plan()
        assert planned.refusals == ()
        assert {f'  - url = "{before}"', f'  + url = "{place}"'} <= set(planned.notes)
        setup_steps.execute(planned)
        assert load(host.configuration).repository["backups"].url == place
        assert host.plan().refusals == ()
    kept = {file.read_bytes() for file in host.configuration.parent.glob("zsnapdb.toml.before-*")}
    assert kept == {first, first.replace(places[0].encode(), places[1].encode())}


@pytest.mark.parametrize("killed_after", range(4))
def test_a_setup_that_is_killed_while_it_writes_its_configuration_can_still_be_corrected(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    """Its record and the file are two: whichever was written, it knows its own words."""
    host.setup()
    written: list[Path] = []
    whole = files.replace

    def until_killed(file: Path, content: bytes, mode: int = 0o600) -> None:
        if len(written) == killed_after:
            raise KeyboardInterrupt
        written.append(file)
        whole(file, content, mode)

    for name in ("elsewhere", "third"):
        (tmp_path / name).mkdir()
    host.answers = replace(host.answers, repository=f"file://{tmp_path / 'elsewhere'}")
    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", until_killed)
        with contextlib.suppress(KeyboardInterrupt):
            host.setup()
    host.answers = replace(host.answers, repository=f"file://{tmp_path / 'third'}")
    host.setup()
    assert load(host.configuration).repository["backups"].url == f"file://{tmp_path / 'third'}"


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


def test_a_second_instance_that_is_corrected_leaves_the_first_one_and_its_repository(
    host: FakeHost, second: SetupAnswers, tmp_path: Path
) -> None:
    first = load(host.configuration)
    host.answers = second
    host.setup()
    for name in ("elsewhere", "third"):
        (tmp_path / name).mkdir()
        host.answers = replace(second, repository=f"file://{tmp_path / name}")
        host.setup()
        settings = load(host.configuration)
        assert settings.repository["backups-shop"].url == f"file://{tmp_path / name}"
        assert settings.instance["shop"].repository == "backups-shop"
        assert (settings.instance["main"], settings.repository["backups"]) == (
            first.instance["main"],
            first.repository["backups"],
        )
    host.answers = replace(second, instance="main", socket="/run/m.sock", repository=f"file://{tmp_path / 'third'}")
    host.setup()
    settings = load(host.configuration)
    assert {one.repository for one in settings.instance.values()} == {"backups-shop"}, "both use the same place"


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

    monkeypatch.setattr(job, "parse", parsed)
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
