"""Notifications reach real receivers, in bounded time, and one that does not arrive is seen."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.support.agent_month import AgentMonth, MemoryRecords
from tests.unit.support.command_line import zsnapdb
from zsnapdb.base.errors import BusyError, RepositoryError
from zsnapdb.config.notifications import NotificationChannel, NotificationEvent, NotifiedJob
from zsnapdb.config.settings import Settings, parse
from zsnapdb.notify.notifier import CHANNELS, Notifier, signature
from zsnapdb.notify.occasions import notified
from zsnapdb.notify.sent_notifications import MemoryFile, failed_deliveries
from zsnapdb.planning.health.notification_events import Occasion

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
FAILED = Occasion(NotificationEvent.FAILURE, "main", "backup", NOW, "it failed", "mend it", "here", 6)


@dataclass
class Receiver:
    """An HTTP server that keeps what it got, and answers with the given codes, the last one for ever."""

    answers: list[int] = field(default_factory=lambda: [200])
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    known = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known.got.append((self.path, dict(self.headers), body))
            code = known.answers.pop(0) if len(known.answers) > 1 else known.answers[0]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", f"{known.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield known
        server.shutdown()


def text(folder: Path, targets: str, bounds: str = "") -> str:
    return (
        f'[notifications]\nstate = "{folder}/state"\n{bounds}\n{targets}\n[instance.main]\nsocket = "/none"\n'
        f'repository = "here"\n[repository.here]\nurl = "file://{folder}/none"\n'
    )


def hook(url: str, more: str = "") -> str:
    return f'[notifications.to.hook]\nwebhook = "{url}/hook"\n{more}'


@dataclass
class Run:
    """One delivery: what was said meanwhile, and who was not reached."""

    settings: Settings
    said: list[str] = field(default_factory=list)

    def send(self, *occasions: Occasion) -> tuple[str, ...]:
        courier = Notifier(self.settings, self.said.append)
        for occasion in occasions:
            courier.post(occasion)
        return courier.close()


def test_a_webhook_is_signed_over_its_time_and_body(receiver: Receiver, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    secret.chmod(0o600)
    settings = parse(text(tmp_path, hook(receiver.url, f'secret_file = "{secret}"')), "test")
    assert Run(settings).send(FAILED) == ()
    ((path, headers, body),) = receiver.got
    assert path == "/hook"
    assert headers["X-Zsnapdb-Signature"] == signature(b"open sesame", headers["X-Zsnapdb-Timestamp"], body)
    document = json.loads(body)
    assert {name: document[name] for name in ("event", "instance", "subject", "exit_code", "text", "hint")} == {
        "event": "failure",
        "instance": "main",
        "subject": "backup",
        "exit_code": 6,
        "text": "it failed",
        "hint": "mend it",
    }


def test_a_secret_that_others_may_read_is_not_used(receiver: Receiver, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open sesame\n")
    secret.chmod(0o644)
    run = Run(parse(text(tmp_path, hook(receiver.url, f'secret_file = "{secret}"')), "test"))
    assert run.send(FAILED) == ("hook",)
    assert receiver.got == []
    assert "other accounts may read or change it" in run.said[0]


@pytest.mark.parametrize("address", ["http://[x/", "http://h:port/"])
def test_webhook_with_an_unusable_address_is_reported(tmp_path: Path, address: str) -> None:
    (tmp_path / "address").write_text(address)
    (tmp_path / "address").chmod(0o600)
    way = f'[notifications.to.hook]\nwebhook_file = "{tmp_path}/address"\n'
    run = Run(parse(text(tmp_path, way), "test"))
    assert run.send(FAILED) == ("hook",)
    assert len(run.said) == 1
    assert address not in run.said[0]


def test_an_attempt_that_fails_is_repeated_with_the_same_id_and_the_problem_is_sent_once(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [503, 200]
    run = Run(parse(text(tmp_path, hook(receiver.url)), "test"))
    assert run.send(FAILED) == ()
    assert len({headers["X-Zsnapdb-Id"] for _, headers, _ in receiver.got}) == 1
    assert run.send(FAILED) == ()
    assert receiver.paths == ["/hook", "/hook"]
    assert run.said == []


def test_what_did_not_arrive_is_said_and_kept_until_something_arrives(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [404, 200]
    run = Run(parse(text(tmp_path, hook(receiver.url)), "test"))
    assert run.send(FAILED) == ("hook",)
    assert len(receiver.got) == 1
    assert run.said == ["the notification failure of backup main did not reach hook: 127.0.0.1 answered 404"]
    ((name, failed),) = failed_deliveries(run.settings)
    assert (name, failed.error) == ("hook", "127.0.0.1 answered 404")
    assert run.send(FAILED) == ()
    assert failed_deliveries(run.settings) == ()


def test_a_redirect_is_not_followed(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [302]
    assert Run(parse(text(tmp_path, hook(receiver.url)), "test")).send(FAILED) == ("hook",)
    assert receiver.paths == ["/hook"]


def test_a_receiver_that_never_answers_delays_a_command_no_longer_than_the_budget(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = parse(text(tmp_path, hook(url), 'budget = "1s"\ntimeout = "30s"'), "test")
        run, began = Run(settings), time.monotonic()
        assert run.send(FAILED) == ("hook",)
        assert time.monotonic() - began < 10
    assert "took longer than the budget" in run.said[0]
    assert failed_deliveries(settings)


def test_a_ping_hears_of_start_success_and_failure_at_its_own_addresses(receiver: Receiver, tmp_path: Path) -> None:
    address = tmp_path / "address"
    address.write_text(f"{receiver.url}/uuid\n")
    address.chmod(0o600)
    targets = f'[notifications.to.ping]\nping_file = "{address}"\nof = "backup"\ninstances = ["main"]\n'
    settings = parse(text(tmp_path, targets), "test")
    said: list[str] = []
    with notified(settings, NotifiedJob.BACKUP, "main", said.append):
        pass
    with pytest.raises(RepositoryError), notified(settings, NotifiedJob.BACKUP, "main", said.append):
        raise RepositoryError("the upload failed")
    with pytest.raises(BusyError), notified(settings, NotifiedJob.BACKUP, "main", said.append):
        raise BusyError("another run")
    assert receiver.paths == ["/uuid/start", "/uuid", "/uuid/start", "/uuid/fail", "/uuid/start"]
    assert b"exit code 6: the upload failed" in receiver.got[3][2]
    assert said == []


def test_a_command_is_not_held_up_at_its_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        targets = f'[notifications.to.ping]\nping = "{url}"\nof = "backup"\ninstances = ["main"]\n'
        settings, began = parse(text(tmp_path, targets, 'budget = "4s"'), "test"), time.monotonic()
        with notified(settings, NotifiedJob.BACKUP, "main", lambda _: None):
            assert time.monotonic() - began < 3
    assert time.monotonic() - began < 20


def test_an_email_goes_through_sendmail_with_the_recipients_as_arguments(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    targets = (
        f'[notifications.to.dba]\nemail = ["dba@example.net"]\nsender = "zsnapdb@example.net"\nsendmail = "{program}"\n'
    )
    assert Run(parse(text(tmp_path, targets), "test")).send(FAILED) == ()
    assert (tmp_path / "words").read_text() == "-i -f zsnapdb@example.net -- dba@example.net\n"
    mail = (tmp_path / "mail").read_text()
    assert "backup main FAILED" in mail
    assert "hint: mend it" in mail


def test_a_script_gets_the_document_and_one_that_hangs_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "script"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/document\n")
    program.chmod(0o755)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 1000 &\nwait\n")
    slow.chmod(0o755)
    targets = f'[notifications.to.a]\nscript = ["{program}"]\n[notifications.to.b]\nscript = ["{slow}"]\n'
    run = Run(parse(text(tmp_path, targets, 'timeout = "4s"\nattempts = 1'), "test"))
    assert run.send(FAILED) == ("b",)
    assert json.loads((tmp_path / "document").read_text())["text"] == "it failed"
    assert "did not end within 4.0 s" in run.said[0]


def test_a_disk_that_refuses_leads_to_a_repetition_not_to_silence(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    run = Run(parse(text(tmp_path, hook(receiver.url)), "test"))
    run.send(FAILED)
    run.send(FAILED)
    assert len(receiver.got) == 2
    assert "cannot be kept" in run.said[0]


def test_a_memory_that_cannot_be_read_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    assert MemoryFile(tmp_path / "a.json").read().problems == ()


def test_commands_notify_of_a_failure_and_status_shows_who_was_not_reached(receiver: Receiver, tmp_path: Path) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(text(tmp_path, hook(receiver.url)))
    done = zsnapdb("verify", "main", config=str(config))
    assert done.returncode == 6
    document = json.loads(receiver.got[0][2])
    assert (document["event"], document["subject"], document["exit_code"]) == ("failure", "verify", 6)
    assert zsnapdb("verify", "main", "--plan", config=str(config)).returncode == 6
    assert zsnapdb("status", "--all", "--notify", config=str(config)).returncode == 6
    assert [json.loads(body)["subject"] for _, _, body in receiver.got] == ["verify", "repository"]
    receiver.answers = [500]
    config.write_text(text(tmp_path, hook(receiver.url), "attempts = 1"))
    tested = zsnapdb("notify", "test", config=str(config))
    assert (tested.returncode, tested.stdout) == (9, f"{'hook':<16}FAILED\n")
    shown = zsnapdb("status", "--all", config=str(config))
    assert "NOT NOTIFIED  hook of test notifications" in shown.stdout
    receiver.answers = [200]
    assert zsnapdb("notify", "test", "hook", config=str(config)).stdout == f"{'hook':<16}arrived\n"
    assert "NOT NOTIFIED" not in zsnapdb("status", "--all", config=str(config)).stdout


def test_a_target_of_an_instance_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="names instance 'nobody'"):
        parse(text(tmp_path, hook("http://x", 'instances = ["nobody"]')), "test")


def test_the_agent_notifies_of_a_job_that_was_killed_and_of_none_that_notifies_itself(
    receiver: Receiver, tmp_path: Path
) -> None:
    jobs = (
        '[instance.main.agent]\nbackup = { every = "1h" }\nverify = { every = "1h" }\n'
        '[agent]\nreap = { every = "1h" }\n'
    )
    settings = parse(text(tmp_path, hook(receiver.url)) + jobs, "test")
    month = AgentMonth(settings, MemoryRecords(tmp_path), NOW)
    codes = {("backup", "main"): -9, ("verify", "main"): 6, ("reap",): -9}
    month.answer = lambda words: (60.0, codes[words])
    month.boot()
    month.live(hours=1, minutes=30)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "state").glob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ((_, _, body),) = receiver.got
    document = json.loads(body)
    assert (document["subject"], document["text"]) == ("backup", "backup of main was ended by signal 9")


def test_what_a_script_prints_does_not_steer_the_terminal(tmp_path: Path) -> None:
    program, config = tmp_path / "script", tmp_path / "zsnapdb.toml"
    program.write_text("#!/bin/sh\nprintf 'a\\033[2Jb'\nexit 1\n")
    program.chmod(0o755)
    config.write_text(text(tmp_path, f'[notifications.to.a]\nscript = ["{program}"]\n', "attempts = 1"))
    done = zsnapdb("notify", "test", config=str(config))
    assert "exit status 1: a\\x1b[2Jb" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_failed_unit_is_told_once_with_what_its_command_told(receiver: Receiver, tmp_path: Path) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(text(tmp_path, hook(receiver.url)))
    ends = (("verify@main", "exit-code", "6"), ("backup@main", "signal", "KILL"), ("prune@main", "success", "0"))
    assert zsnapdb("verify", "main", config=str(config)).returncode == 6
    for unit, result, status in ends:
        told_by_systemd = {"MONITOR_SERVICE_RESULT": result, "MONITOR_EXIT_STATUS": status}
        done = zsnapdb("notify", "failed", f"zsnapdb-{unit}", config=str(config), **told_by_systemd)
        assert done.returncode == 0, done.stderr
    told = [json.loads(body)["text"] for _, _, body in receiver.got]
    assert len(told) == 2
    assert told[0].startswith("verify of main failed")
    assert told[1] == "unit zsnapdb-backup@main failed: signal KILL"
    receiver.answers = [404]
    assert zsnapdb("notify", "failed", "nightly", config=str(config)).returncode == 9
    assert zsnapdb("notify", "failed", "a b", config=str(config)).returncode == 2


def test_metrics_that_cannot_be_written_are_broken_and_keep_no_notification_back(
    receiver: Receiver, tmp_path: Path
) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(text(tmp_path, f'[notifications.to.ping]\nping = "{receiver.url}/p"\nof = "objectives"\n'))
    words = ("status", "--all", "--notify", "--metrics", str(tmp_path / "none" / "zsnapdb.prom"))
    done = zsnapdb(*words, config=str(config))
    assert (done.returncode, receiver.paths) == (6, ["/p/fail"])
    assert "writing the metrics" in done.stderr


def test_every_channel_that_the_configuration_knows_delivers() -> None:
    assert set(CHANNELS) == set(NotificationChannel)
