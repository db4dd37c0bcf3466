"""Setup does exactly the steps that its plan has, and the same setup goes on where one was interrupted."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.drilled import evidence
from tests.unit.support.setup_host import PROCESS, FakeHost
from zsnapdb.base import files
from zsnapdb.base.errors import ChangedError, PreflightError, ServerError
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import catalogue
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import init
from zsnapdb.jobs.setup import configuration
from zsnapdb.jobs.setup import discovery as job
from zsnapdb.jobs.setup import steps as setup_steps
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess
from zsnapdb.planning.setup.facts import (
    SetupAnswers,
)
from zsnapdb.planning.setup.plan import PROOF, SetupAction, SetupStep
from zsnapdb.planning.setup.summary import summarize
from zsnapdb.report.setup import SetupPlanView, SetupView
from zsnapdb.repository import drills
from zsnapdb.repository.crypto_keys import SigningKey
from zsnapdb.repository.drills import Outcome


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
    assert list(load(host.configuration).instance) == ["shop"], "the next setup writes a new configuration"
