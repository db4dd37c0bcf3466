"""The agent answers by HTTP, goes red when it or its jobs do, and answers nobody who may not ask."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.support import certificates
from zsnapdb.agent.records import Records
from zsnapdb.agent.web import Answers, Listener, Pages, WebServer
from zsnapdb.base.errors import ConfigError
from zsnapdb.config.services import HttpSettings
from zsnapdb.config.settings import parse
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent_jobs import HOST, JobKind, JobName, KnownRun, RunRecord, jobs_of, not_ready

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
STATUS, BACKUP = JobName(HOST, JobKind.STATUS), JobName("main", JobKind.BACKUP)
CONFIGURATION = """
[agent]
state = "{folder}"
status = {{ every = "5m" }}
[agent.http]
port = 0
[instance.main]
socket = "/x"
repository = "here"
[instance.main.agent]
backup = {{ every = "1h" }}
[repository.here]
url = "file:///nowhere"
"""


def run(code: int | None, failures: int = 0, **ago: float) -> RunRecord:
    at = NOW - timedelta(**ago)
    good = RunRecord(scheduled=at, started=at).ended(at, code, "", is_good=code in (0, 1))
    return good.model_copy(update={"failures": failures})


@contextmanager
def serving(settings: HttpSettings, answers: Answers, seconds: float = 3600.0) -> Iterator[WebServer]:
    server = WebServer(settings, answers, seconds)
    server.start()
    try:
        yield server
    finally:
        server.close()


def got(server: WebServer, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def fixed(*wrong: str) -> Answers:
    return Answers(lambda: "zsnapdb_verdict 0\n", lambda: (), lambda: wrong)


def test_a_full_disk_of_its_records_is_red_at_once_whatever_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = parse(CONFIGURATION.format(folder=tmp_path), "test")
    pages = Pages(settings, Host(now=lambda: NOW), lambda: 0.0)
    Records(tmp_path).set_run(STATUS, run(0, minutes=3))
    assert pages.ready() == ()
    full = SimpleNamespace(f_flag=0, f_bfree=0, f_bavail=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    assert "0 bytes of room" in pages.ready()[0]


def test_metrics_from_a_planted_link_are_not_served(tmp_path: Path) -> None:
    """The account of the exporter may own the folder, and everybody may read the answer."""
    settings = parse(CONFIGURATION.format(folder=tmp_path), "test")
    assert settings.agent.http is not None
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "status.prom").symlink_to(tmp_path / "secret")
    with serving(settings.agent.http, Pages(settings, Host(now=lambda: NOW), lambda: 0.0).answers) as server:
        code, text = got(server, "/metrics")
    assert code == 503
    assert "symbolic link" in text


def test_the_pages_are_green_while_all_is_well_and_red_with_the_reasons(tmp_path: Path) -> None:
    settings = parse(CONFIGURATION.format(folder=tmp_path), "test")
    assert settings.agent.http is not None
    clock = [0.0]
    pages = Pages(settings, Host(now=lambda: NOW), lambda: clock[0])
    records = Records(tmp_path)
    with serving(settings.agent.http, pages.answers) as server:
        assert got(server, "/metrics")[0] == 503
        assert got(server, "/readyz") == (503, "the objectives were not judged yet\n")
        (tmp_path / "status.prom").write_text("zsnapdb_verdict 1\n")
        records.set_run(STATUS, run(1, minutes=3))
        records.set_run(BACKUP, run(0, minutes=50))
        assert got(server, "/metrics") == (200, "zsnapdb_verdict 1\n")
        assert got(server, "/healthz") == (200, "ok\n")
        assert got(server, "/readyz") == (200, "ok\n")
        records.set_run(BACKUP, run(6, failures=2, minutes=50))
        assert got(server, "/readyz") == (503, "backup main failed 2 times in a row\n")
        clock[0] = 300.0
        assert got(server, "/healthz") == (503, "the agent has done nothing for 300 s\n")
        assert got(server, "/other")[0] == 404
        pages.turned()
        assert got(server, "/healthz")[0] == 200


def test_the_status_job_writes_the_file_that_is_answered(tmp_path: Path) -> None:
    settings = parse(CONFIGURATION.format(folder=tmp_path), "test")
    (job,) = [job for job in jobs_of(settings) if job.name == STATUS]
    assert job.words == ("status", "--all", "--notify", "--metrics", f"{tmp_path}/status.prom")


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (None, "were not judged yet"),
        (RunRecord(scheduled=NOW, started=NOW), "were not judged yet"),
        (run(2, failures=1, minutes=1), "ended with 2"),
        (run(None, failures=1, minutes=1), "ended with None"),
        (run(0, minutes=31), "were judged last"),
        (run(0, minutes=-31), "were judged last"),
        (run(1, minutes=1), ""),
        (run(0, minutes=29).model_copy(update={"finished": None, "exit_code": None}), ""),
        (run(0, failures=1, minutes=1).model_copy(update={"finished": None, "exit_code": None}), "was not good"),
    ],
)
def test_what_is_not_judged_not_good_or_not_fresh_is_red(judged: RunRecord | None, words: str) -> None:
    reasons = not_ready([KnownRun(STATUS, judged)], 1800.0, NOW)
    assert (words in reasons[0]) if words else reasons == ()


@pytest.mark.parametrize(("minutes", "is_red"), [(9, True), (10, False)])
def test_an_archive_that_failed_is_red_until_it_has_run_for_long_again(minutes: int, is_red: bool) -> None:
    archive = KnownRun(JobName("main", JobKind.ARCHIVE), run(None, failures=1, minutes=minutes))
    again = KnownRun(archive.name, archive.last and archive.last.model_copy(update={"finished": None}))
    judged = KnownRun(STATUS, run(0, minutes=1))
    assert not_ready([judged, archive], 1800.0, NOW) == ("archive main failed 1 times in a row",)
    assert bool(not_ready([judged, again], 1800.0, NOW)) is is_red


def test_without_a_judgement_nothing_is_green() -> None:
    assert not_ready([KnownRun(BACKUP, run(0, minutes=1))], 1800.0, NOW)


def test_a_token_is_needed_where_one_is_configured(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with serving(HttpSettings(port=0, token_file=token), fixed()) as server:
        for path in ("/metrics", "/healthz", "/readyz"):
            assert got(server, path)[0] == 401
            assert got(server, path, Authorization="Bearer wrong")[0] == 401
            assert got(server, path, Authorization="Bearer secret")[0] == 200


def test_a_token_file_that_is_empty_or_public_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    for content, mode in (("\n", 0o600), ("secret\n", 0o644)):
        token.write_text(content)
        token.chmod(mode)
        with pytest.raises(ConfigError):
            WebServer(HttpSettings(port=0, token_file=token), fixed())


def test_with_a_certificate_answers_are_encrypted_and_plain_requests_get_none(tmp_path: Path) -> None:
    files = certificates.make(tmp_path, "127.0.0.1")
    with serving(HttpSettings(port=0, certificate=files.cert, key=files.key), fixed()) as server:
        context = ssl.create_default_context(cafile=str(files.ca))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=30)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read() == b"zsnapdb_verdict 0\n"
        with pytest.raises((OSError, http.client.HTTPException)):
            got(server, "/metrics")


@contextmanager
def trickling(server: WebServer, count: int) -> Iterator[list[socket.socket]]:
    """So many connections, each of which gets another byte of a request all the time."""
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(count)]
    end = threading.Event()

    def trickle() -> None:
        while not end.wait(0.01):
            for each in slow:
                with contextlib.suppress(OSError):
                    each.send(b"G")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield slow
    finally:
        end.set()
        thread.join()
        for each in slow:
            each.close()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("path", ["/readyz", "/metrics", "/healthz"])
def test_fifty_clients_that_send_a_byte_now_and_then_keep_no_other_out(path: str) -> None:
    with serving(HttpSettings(port=0), fixed()) as server, trickling(server, 50) as slow:
        for _ in range(3):
            assert got(server, path)[0] == 200
        assert is_closed(slow[0]), "the client that came first made room"


def test_a_client_has_its_time_for_the_whole_request_however_often_it_sends_a_byte() -> None:
    with serving(HttpSettings(port=0), fixed(), 0.3) as server, trickling(server, 2) as slow:
        assert [is_closed(each) for each in slow] == [True, True]


def test_a_client_that_does_not_read_its_answer_is_sent_away_when_its_time_is_over() -> None:
    made = threading.Event()

    def metrics() -> str:
        made.set()
        return "x" * (64 << 20)

    with (
        serving(HttpSettings(port=0), Answers(metrics, tuple, tuple), 0.3) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as lazy,
    ):
        lazy.send(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert made.wait(30)
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(30)
                assert not thread.is_alive()


def test_clients_whose_answers_are_being_made_are_not_sent_away_and_more_are_turned_away() -> None:
    started, end = threading.Semaphore(0), threading.Event()

    def ready() -> tuple[str, ...]:
        started.release()
        end.wait(60)
        return ()

    with serving(HttpSettings(port=0), Answers(str, tuple, ready)) as server:
        codes: list[int] = []
        threads = [threading.Thread(target=lambda: codes.append(got(server, "/readyz")[0])) for _ in range(16)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert started.acquire(timeout=30)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as late:
            assert is_closed(late)
        end.set()
        for thread in threads:
            thread.join()
    assert codes == [200] * 16


def test_clients_that_begin_no_handshake_keep_nobody_out(tmp_path: Path) -> None:
    files = certificates.make(tmp_path, "127.0.0.1")
    with serving(HttpSettings(port=0, certificate=files.cert, key=files.key), fixed()) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(20)]
        context = ssl.create_default_context(cafile=str(files.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=30)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        assert is_closed(silent[0])
        for each in silent:
            each.close()


@pytest.mark.parametrize(
    "fields",
    [{"address": "0.0.0.0"}, {"address": "::", "token_file": "/t"}, {"certificate": "/c"}, {"address": "localhost;"}],
)
def test_an_address_that_others_reach_needs_tls_and_a_token(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpSettings(**fields)


def test_a_port_that_is_taken_is_an_error_of_the_configuration() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="listening on 127"):
        WebServer(HttpSettings(port=taken.getsockname()[1]), fixed())


def is_open(port: int | None) -> bool:
    with socket.socket() as client:
        return port is not None and client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener(Answers(lambda: "", tuple, tuple))
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_port_opens_moves_and_closes_as_each_configuration_says(listener: Listener) -> None:
    listener.use(None)
    assert listener.port is None
    first, second = HttpSettings(port=free_port()), HttpSettings(port=free_port())
    listener.use(first)
    assert is_open(first.port)
    listener.use(first.model_copy(update={"stale": 60.0}))
    assert is_open(first.port)
    listener.use(second)
    assert (is_open(first.port), is_open(second.port)) == (False, True)
    listener.use(None)
    assert not is_open(second.port)


def test_a_port_that_cannot_be_opened_leaves_the_one_in_use_open(listener: Listener) -> None:
    first = HttpSettings(port=free_port())
    listener.use(first)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = HttpSettings(port=other.getsockname()[1])
        with pytest.raises(ConfigError, match="listening on"):
            listener.use(taken)
        assert is_open(first.port)
    listener.use(taken)
    assert (is_open(first.port), is_open(taken.port)) == (False, True)


def test_a_token_that_was_exchanged_counts_from_the_next_reading_on(listener: Listener, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("old")
    settings = HttpSettings(port=free_port(), token_file=token)
    listener.use(settings)
    token.write_text("new")
    listener.use(settings)
    answers = {}
    for word in ("old", "new"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", settings.port, timeout=60)) as client:
            client.request("GET", "/healthz", headers={"Authorization": f"Bearer {word}"})
            answers[word] = client.getresponse().status
    assert answers == {"old": 401, "new": 200}
