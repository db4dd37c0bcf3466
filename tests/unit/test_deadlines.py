"""One limit covers an exchange with each party outside: a peer that drips, is silent or never ends is left in time."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fcntl
import functools
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.unit.support import certificates
from tests.unit.support.slow_peer import Manner, greeting, http_answer, packet, slow_peer
from zsnapdb.base import files, name_resolution, program_start
from zsnapdb.base.deadline import within
from zsnapdb.base.errors import (
    CommandError,
    DamagedError,
    HookError,
    PreflightError,
    RepositoryError,
    ServerError,
    UnreachableError,
)
from zsnapdb.client import http as client_http
from zsnapdb.client.api_protocol import ApiRequest
from zsnapdb.client.errors import CloneCommandError
from zsnapdb.config.services import AddressSettings
from zsnapdb.fleet import operator_orders
from zsnapdb.hooks import Hook, When
from zsnapdb.hooks import run as run_hook
from zsnapdb.jobs.backup import vm_source
from zsnapdb.jobs.base import clock_record
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import haproxy_socket
from zsnapdb.mysql.connection import Connection
from zsnapdb.mysql.connection import greeting as version_of
from zsnapdb.mysql.session import Address, Session
from zsnapdb.notify import notifier
from zsnapdb.notify.notifier import DeliveryFailure
from zsnapdb.serve import issuer_requests
from zsnapdb.serve.helper_messages import FailureAnswer, HelperClient, HelperRequest
from zsnapdb.serve.issuer_requests import HttpsRequest, https_ask
from zsnapdb.store import base as store_base
from zsnapdb.store import s3_client
from zsnapdb.store.s3 import S3Store
from zsnapdb.verbs.requests import ListClonesVerb

_SECONDS = 0.6
_LATEST = 5.0
"""After this time a client has surely missed its limit."""


@contextmanager
def in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < _LATEST


@pytest.fixture(params=list(Manner))
def manner(request: pytest.FixtureRequest) -> Manner:
    return Manner(request.param)


def test_haproxy_holds_no_lock_for_longer_than_its_limit(
    manner: Manner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(haproxy_socket, "_SECONDS", _SECONDS)
    settings = AddressSettings(socket=tmp_path / "admin")
    with slow_peer(manner, at=settings.socket), in_time(), pytest.raises(PreflightError):
        haproxy_socket.routes(settings)


@pytest.mark.parametrize("prefix", [b"", packet(0, b"x" * 200)[:9]], ids=["nothing", "a packet's head"])
def test_server_that_greets_slowly_is_no_server(manner: Manner, prefix: bytes) -> None:
    with slow_peer(manner, talk=lambda client: client.sendall(prefix)) as peer, in_time():
        place = Address("zsnapdb", host="127.0.0.1", port=peer.port)
        with pytest.raises(ServerError):
            Session.open(place, SecretStr("x"), timeout=_SECONDS, read_timeout=_SECONDS)
        if not prefix or manner is not Manner.ENDLESS:
            with pytest.raises(ServerError):
                version_of(place, timeout=_SECONDS)


COLUMN = packet(1, b"\1") + packet(2, b"\3def\0\0\0\1a\0\x0c\x2d\0\4\0\0\0\xfd\0\0\0\0\0") + packet(3, b"\xfe\0\0\2\0")
"""The beginning of an answer with one column; rows follow."""
ROWS = b"".join(packet((4 + number) % 256, b"\1a") for number in range(256))
OK = packet(1, b"\0\0\0\2\0\0\0")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_statement_ends_in_its_time_with_all_its_rows(
    manner: Manner, is_streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsnapdb.mysql.connection._MOST_BYTES", 1 << 20)
    with slow_peer(manner, talk=greeting([OK, COLUMN]), rest=ROWS) as peer:
        connection = _connection(peer.port)
        session = Session(connection, Address("x"))
        with in_time(), pytest.raises(ServerError):
            list(session.stream("SELECT a", batch=1 << 30)[1]) if is_streamed else session.query("SELECT a")
        session.close()


def _connection(port: int) -> Connection:
    return Connection(
        Address("x", host="127.0.0.1", port=port), takes_scripts=False, password="", read_timeout=_SECONDS,
        connect_timeout=1, autocommit=True,
    )  # fmt: skip


@pytest.fixture
def bucket_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr(s3_client, "REQUEST_SECONDS", _SECONDS)
    monkeypatch.setattr(s3_client, "_MOST_ANSWER", 64 << 10)


S3_CALLS: dict[str, Callable[[S3Store], object]] = {
    "list": lambda store: list(store.list("p/")),
    "get": lambda store: store.get("p/zsnapdb.json"),
    "read_into": lambda store: store.read_into("p/chunk", memoryview(bytearray(1 << 20))),
    "read_into in parts": lambda store: store.read_into("p/chunk", memoryview(bytearray(16 << 20))),
    "put": lambda store: store.put("p/x", bytes(32 << 20)),
    "delete_many": lambda store: store.delete_many(["p/x", "p/y"]),
    "hold": lambda store: store.hold("p/x"),
}
S3_TALKS = {
    "silent from the start": lambda _: None,
    "headers drip": http_answer(),
    "body drips": http_answer("Content-Length: 100000000", 'ETag: "a"'),
}


def _store(endpoint: str) -> S3Store:
    return S3Store("b", endpoint=endpoint, region="us-east-1", credentials_file=None, addressing="path", connections=2)


@pytest.mark.usefixtures("bucket_settings")
@pytest.mark.parametrize("call", S3_CALLS)
@pytest.mark.parametrize("talk", S3_TALKS)
def test_store_that_drips_cannot_be_reached(manner: Manner, call: str, talk: str) -> None:
    with slow_peer(manner, talk=S3_TALKS[talk]) as peer, in_time():
        store = _store(f"http://127.0.0.1:{peer.port}")
        if (call, talk) == ("hold", "body drips"):
            store.hold("p/x")  # An answer to HEAD has no body.
        elif call.startswith("read_into") and talk == "body drips" and manner is Manner.ENDLESS:
            assert store.read_into("p/chunk", memoryview(bytearray(1 << 20))) == 100000000
        else:
            with pytest.raises((RepositoryError, DamagedError)):
                S3_CALLS[call](store)


@pytest.mark.usefixtures("bucket_settings")
def test_issuer_and_tls_have_one_limit_too(manner: Manner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_requests, "_SECONDS", _SECONDS)
    files = certificates.make(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    client = ssl.create_default_context(cafile=str(files.ca))
    for talk in (http_answer(), http_answer("Content-Length: 100000000")):
        with slow_peer(manner, talk=talk, context=context) as peer, in_time(), pytest.raises(UnreachableError):
            https_ask(HttpsRequest(f"https://localhost:{peer.port}/"), client)
    with slow_peer(manner, rest=b"\x16\x03\x03\x40\x00") as peer, in_time(), pytest.raises(UnreachableError):
        https_ask(HttpsRequest(f"https://localhost:{peer.port}/"), client)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(files.ca))
    with slow_peer(manner, talk=http_answer(), context=context) as peer, in_time(), pytest.raises(RepositoryError):
        _store(f"https://localhost:{peer.port}").check()


def test_webhook_has_one_limit(manner: Manner) -> None:
    with slow_peer(manner, talk=http_answer()) as peer, in_time(), pytest.raises(DeliveryFailure):
        notifier.post(f"http://127.0.0.1:{peer.port}/", b"{}", {}, _SECONDS)


@pytest.mark.parametrize("talk", [lambda _: None, http_answer(), http_answer("Content-Length: 100000000")])
@pytest.mark.parametrize("is_async", [False, True])
def test_client_has_one_limit_for_each_answer(
    manner: Manner, talk: Callable[[object], None], is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_http, "_SECONDS", _SECONDS)
    asked, token = ApiRequest("GET", "/api/v1/clones"), "x" * 40

    async def ask(url: str) -> None:
        async with client_http.AsyncClient(url, token, allows_http=True) as client:
            await client._answered(asked)

    with slow_peer(manner, talk=talk) as peer, in_time():
        url = f"http://127.0.0.1:{peer.port}"
        if is_async:
            with pytest.raises((httpx.HTTPError, TimeoutError, CloneCommandError)):
                asyncio.run(ask(url))
        else:
            client = client_http.Client(url, token, allows_http=True)
            with client, pytest.raises((httpx.HTTPError, CloneCommandError)):
                client._answered(asked)


def test_engine_of_the_fleet_has_one_limit_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connected(*_: object) -> object:
        return object()

    async def silent(_: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(operator_orders, "connect", connected)
    monkeypatch.setattr(operator_orders, "_SECONDS", _SECONDS)
    settings = SimpleNamespace(engine=SimpleNamespace(server="engine:7233"))
    with in_time(), pytest.raises(UnreachableError, match="has not answered"):
        operator_orders._ask(settings, "planning", silent)  # type: ignore[arg-type]


def test_helper_has_one_limit_for_each_answer(manner: Manner, tmp_path: Path) -> None:
    client = HelperClient(tmp_path / "helper", _SECONDS)
    with slow_peer(manner, at=client.path), in_time():
        assert isinstance(client.ask(HelperRequest(token="x" * 40, verb=ListClonesVerb())), FailureAnswer)


def test_listing_that_repeats_a_page_or_never_brings_names_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = store_base.ListingPace("listing")
    pace.next_token("a")
    with pytest.raises(RepositoryError, match="repeats a page"):
        pace.next_token("a")
    monkeypatch.setattr(store_base, "LISTING_SECONDS", 0.1)
    with pytest.raises(UnreachableError), in_time():
        _brings_nothing(pace)
    with pytest.raises(RepositoryError, match="more than"):
        pace.add(store_base.MOST_NAMES + 1)


def _brings_nothing(pace: store_base.ListingPace) -> None:
    for _ in range(100):
        with pace.page():
            time.sleep(0.05)


PROGRAMS = {
    "writes without end": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "drips": "import os, time\nwhile True: os.write(1, b'x'); time.sleep(0.05)",
    "leaves a child with its output": (
        "import subprocess, sys\nsubprocess.Popen(['sleep', '8'])\nprint('done', flush=True)"
    ),
    "ignores SIGTERM": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(8)",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_ends_in_its_time_and_size(program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program_start, "MOST_IN_FILE", 4 << 20)
    argv = [sys.executable, "-c", PROGRAMS[program]]
    ends_well = program.startswith("leaves")
    with in_time():
        if ends_well:
            assert program_start.run(argv, timeout=3).stdout == b"done\n"
        else:
            with pytest.raises((CommandError, subprocess.TimeoutExpired)):
                program_start.run(argv, timeout=_SECONDS, most_bytes=1 << 20)
    script = tmp_path / "hook"
    script.write_text(f"#!{sys.executable}\n{PROGRAMS[program]}")
    script.chmod(0o755)
    with in_time():
        if ends_well:
            run_hook(Hook(When.BEFORE, (str(script),), 3), {})
        else:
            with pytest.raises(HookError):
                run_hook(Hook(When.BEFORE, (str(script),), 1.5), {})


PLAIN = {"recv", "recv_into", "settimeout", "urlopen", "create_connection", "communicate"}
"""What limits one read at most, or nothing."""
HOMES = {
    # The mechanism.
    "base/deadline.py",
    # One deadline over all its reads, beside the call.
    *("mysql/process/discovery.py", "serve/helper.py", "agent/web.py"),
    # Packets of processes of our own: one read is one exchange.
    "agent/job_starter.py",
    # Opens a connection with a limit, and reads nothing.
    "client/pytest_plugin.py",
}
PACKAGE = Path(program_start.__file__).parents[1]


@functools.cache
def parsed(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text())


@functools.cache
def all_calls() -> dict[str, list[tuple[str, ast.Call]]]:
    """Return the calls in the package with their modules, by the last part of what is called."""
    found: dict[str, list[tuple[str, ast.Call]]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        module = str(file.relative_to(PACKAGE))
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                found.setdefault(name, []).append((module, node))
    return found


def calls(name: str) -> list[tuple[str, ast.Call]]:
    """Return each call of something of that name in the package, with its module."""
    return all_calls().get(name, [])


def test_only_modules_with_one_deadline_read_from_a_socket() -> None:
    assert {module for name in PLAIN for module, call in calls(name) if isinstance(call.func, ast.Attribute)} == HOMES


WAITS_WITHOUT_LIMIT = {
    # Its processes were killed, or are to end by a deadline that the line before waits for.
    ("mysql/process/programs.py", "process.wait"),
    ("mysql/process/process_managers.py", "self.process.wait"),
    ("client/clone_holder.py", "process.wait"),
    ("fleet/trial_fleet.py", "process.wait"),
    # Events of threads and tasks of our own.
    ("zfs/snapshots.py", "self._decided.wait"),
    ("fleet/worker.py", "stop.wait"),
}


def test_every_wait_for_a_program_has_a_limit() -> None:
    bare = {(module, ast.unparse(call.func)) for module, call in calls("wait") if not (call.args or call.keywords)}
    assert bare == WAITS_WITHOUT_LIMIT


@pytest.mark.usefixtures("bucket_settings")
@pytest.mark.parametrize("answers", ["never", "later than the exchange"])
def test_name_server_that_hangs_is_left_in_time(answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def hangs(host: str, *more: Any, **options: Any) -> Any:
        if name_resolution.is_address(host):
            return real(host, *more, **options)
        time.sleep(2 * _LATEST)
        raise socket.gaierror("the name server hung")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(name_resolution, "SECONDS", _SECONDS if answers == "never" else 10 * _LATEST)
    limit = contextlib.nullcontext() if answers == "never" else within(_SECONDS)
    with in_time(), pytest.raises(TimeoutError, match="was not resolved"), limit:
        name_resolution.addresses_of("db.example")
    monkeypatch.setattr(name_resolution, "SECONDS", _SECONDS)
    with in_time(), pytest.raises(DeliveryFailure):
        notifier.post("http://db.example/", b"{}", {}, _SECONDS)
    with in_time(), pytest.raises(ServerError, match="was not resolved"):
        Session.open(Address("x", host="db.example", port=3306), SecretStr("x"), timeout=1, read_timeout=_SECONDS)
    with in_time(), pytest.raises(RepositoryError):
        _store("http://db.example:1").get("p/zsnapdb.json")
    with in_time(), pytest.raises(PreflightError, match="was not resolved"):
        vm_source._prove_inside("db.example", ["192.0.2.1"])


def test_lock_that_nobody_releases_delays_no_removal_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_record, "_LOCK_SECONDS", 0.2)
    host = replace(THIS_HOST, run=tmp_path / "run", records=tmp_path / "records")
    with files.open_lock(host.run, "clock") as lock, in_time():
        fcntl.flock(lock, fcntl.LOCK_EX)
        clock_record.removal_time(host)
        assert not host.clocks.exists()
        with pytest.raises(PreflightError, match="held the lock"):
            clock_record.confirm(host)


RESOLVERS = {"getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo", "getfqdn"}
CONNECTS = {
    "base/deadline.py": "the timed socket itself",
    "base/timed_http.py": "after the name was resolved in its time",
    "mysql/connection.py": "after the name was resolved in its time",
    "mysql/process/discovery.py": "to an address that a hypervisor reported",
    "store/s3_client.py": "after the name was resolved in its time",
    "jobs/clone/haproxy_socket.py": "to a local socket",
    "serve/helper_messages.py": "to a local socket",
    "fleet/connection.py": "an asynchronous call inside of a limit",
    "jobs/restore/machine_restore.py": "a function of `vm/hypervisor.py`",
    "jobs/trial/machine_drill.py": "a function of `vm/hypervisor.py`",
    "client/pytest_plugin.py": "to the address of a clone that listens on the loopback interface only",
    "client/http.py": "the process of a test or a script waits, which holds no lock; its name is in its configuration",
}
"""Why each module may connect, as a library resolves the name once more."""
JOINS = {
    ("jobs/backup/low_priority.py", "thread.join"): "two calls of the kernel about this process",
    ("mysql/locks.py", "thread.join"): "its only statement has the limit of its session",
    ("repository/writer_lease.py", "self._thread.join"): "its request has the limit of the store",
    ("zfs/snapshots.py", "self._thread.join"): "the kernel completes a request for snapshots in any case",
}
RESULTS = {
    "jobs/repository/verify.py": "reads of a store, each with a limit",
    "jobs/repository/copy.py": "requests to a store, each with a limit",
    "jobs/binlog/archiver.py": "requests to a store, each with a limit",
    "store/s3_bucket.py": "requests to a store, each with a limit",
    "stream/upload.py": "requests to a store, each with a limit",
    "stream/download.py": "requests to a store, each with a limit",
    "store/local.py": "after an event that was waited for with a limit",
    "store/cloud_clients.py": "the request is inside of `asyncio.wait_for`",
    "jobs/vm/create.py": "a command of zfs, which has a limit",
    "jobs/backup/vm_source.py": "no future: the result of a freeze",
    "fleet/engine_client.py": "asynchronous calls inside of a limit",
}
QUEUES = {
    ("notify/notifier.py", "self._queue.get"): "a daemon thread; `was_good` waits for it with a limit",
    ("store/local.py", "calls.get"): "a daemon thread that waits for work",
}
CHILDREN = {
    "mysql/process/server.py": "the process has ended",
    "serve/issuer_requests.py": "the child was killed",
    "cli/fork_server.py": "the child only starts another one and ends",
    "zfs/mounting.py": "the child makes three calls of the kernel and ends",
}
OPENED = {"O_NONBLOCK", "O_DIRECTORY", "O_PATH", "O_EXCL", "O_RDWR", "_FILE", "_FOLDER", "_NEW"}
"""Flags with which open(2) of a pipe does not wait. The names with underscores contain such flags."""
OPENED_OTHERWISE = {
    ("zfs/mounting.py", "f'/proc/{mount.pid}/ns/mnt'"): "a file of proc(5)",
    ("cli/main_process.py", "os.devnull"): "no pipe",
    ("store/local.py", "temporary"): "its flags contain O_EXCL",
    ("agent/children.py", "log"): "its flags contain O_NONBLOCK",
    ("mysql/process/sandbox_launcher.py", "target"): "below a file system that this process has just mounted",
}


def bare(name: str) -> set[tuple[str, str]]:
    """Return the calls of that name without any argument, as module and text of what is called."""
    return {(module, ast.unparse(call.func)) for module, call in calls(name) if not (call.args or call.keywords)}


def test_only_one_module_asks_the_resolver() -> None:
    assert {module for name in RESOLVERS for module, _ in calls(name)} == {"base/name_resolution.py"}


def test_every_module_that_connects_has_a_reason() -> None:
    names = ("connect", "connect_tcp", "create_connection", "_new_conn")
    found = {module for name in names for module, call in calls(name) if isinstance(call.func, ast.Attribute)}
    assert found == CONNECTS.keys()


def test_every_lock_of_a_file_is_asked_for_without_waiting() -> None:
    locks = [(module, ast.unparse(call)) for name in ("flock", "lockf") for module, call in calls(name)]
    assert locks
    assert [one for one in locks if "LOCK_NB" not in one[1] and "LOCK_UN" not in one[1]] == []


def test_every_wait_for_threads_and_queues_has_a_reason() -> None:
    assert bare("join") == JOINS.keys()
    assert {module for module, _ in bare("result")} == RESULTS.keys()
    queues = {one for one in bare("get") if "queue" in one[1] or "calls" in one[1]}
    assert queues == QUEUES.keys()
    assert bare("acquire") == set()


def test_every_child_is_awaited_with_a_limit_or_a_reason() -> None:
    waits = {module for module, call in calls("waitpid") if "WNOHANG" not in ast.unparse(call)}
    assert waits == CHILDREN.keys()
    started = [(module, call) for module, call in calls("run") if ast.unparse(call.func) == "subprocess.run"]
    assert [module for module, call in started if "timeout" not in {one.arg for one in call.keywords}] == []
    unlimited = ("check_output", "check_call", "getoutput", "getstatusoutput", "system", "popen")
    assert [module for name in unlimited for module, call in calls(name) if isinstance(call.func, ast.Attribute)] == []


def test_opening_a_planted_pipe_never_waits() -> None:
    found = [
        (module, call)
        for module, call in calls("open")
        if ast.unparse(call.func) == "os.open" and not OPENED & set(re.findall(r"\w+", ast.unparse(call)))
    ]
    assert {(module, ast.unparse(call.args[0])) for module, call in found} == OPENED_OTHERWISE.keys()


def test_every_poll_accepts_any_limit() -> None:
    """poll(2) refuses more than 24 days, and limits are configured."""
    assert program_start.poll_timeout(30 * 86_400.0) == 2**31 - 1
    assert (program_start.poll_timeout(-1.0), program_start.poll_timeout(0.0001)) == (0, 1)
    calls = [
        ast.unparse(node)
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "poll"
        and node.args
    ]
    assert len(calls) >= 4
    assert [call for call in calls if not re.search(r"poll_timeout\(|poll\((_[A-Z_]+|0)\)", call)] == []


def test_every_http_exchange_of_the_client_has_one_limit() -> None:
    """An exchange is inside of a limit, and the connections of the client with threads obey it."""
    limits = {"within", "asyncio.timeout"}
    streamed = sum(1 for _, call in calls("stream") if ast.unparse(call.func) == "self._http.stream")
    limited = [
        node
        for node in ast.walk(parsed("client/http.py"))
        if isinstance(node, ast.With | ast.AsyncWith)
        and [ast.unparse(item.context_expr).partition("(")[0] for item in node.items][1:] == ["self._http.stream"]
        and ast.unparse(node.items[0].context_expr).partition("(")[0] in limits
    ]
    assert len(limited) == streamed == 2
    made = [ast.unparse(node) for node in ast.walk(parsed("client/http.py")) if isinstance(node, ast.Call)]
    assert next(text for text in made if "httpx.Client(" in text).startswith("limit(")
    clients = [each for name in ("Client", "AsyncClient") for each in calls(name)]
    assert {module for module, call in clients if "httpx" in ast.unparse(call)} == {"client/http.py"}


def test_every_web_server_ends_slow_requests() -> None:
    (found,) = [(module, call) for module, call in calls("Config") if "uvicorn" in ast.unparse(call.func)]
    assert found[0] == "serve/web_server.py"
    assert "http=TimedProtocol" in ast.unparse(found[1])
    servers = {module for name in ("ThreadingHTTPServer", "HTTPServer") for module, _ in calls(name)}
    assert servers <= {"agent/web.py"}


def test_every_folder_of_objects_may_hang() -> None:
    """One whose files are this host's own, and one that is only looked at before it holds anything, are no stores."""
    bare = {(module, ast.unparse(call)) for module, call in calls("LocalStore")}
    wrapped = {call.args[0] for module, call in calls("TimedFolder")}
    assert {ast.unparse(one) for one in wrapped} == {"LocalStore(folder)"}
    assert {module for module, _ in bare} == {"store/local.py", "jobs/restore/offline_repository.py"}


def test_every_question_to_a_guest_has_a_limit() -> None:
    """libvirt's own functions wait for an agent without limit, once it has answered a first ping."""
    limited = {"qemuAgentCommand": 4, "interfaceAddresses": 2}
    assert all(len(call.args) == limited[name] for name in limited for _, call in calls(name))
    text = (PACKAGE / "vm/hypervisor.py").read_text()
    unlimited = ("fsFreeze", "fsThaw", "fsInfo", "guestInfo", "getHostname", "guestVcpus", "fsTrim", '"AGENT"')
    assert [one for one in unlimited if f".{one}(" in text or (one.startswith('"') and one in text)] == []


def test_every_stream_of_zfs_is_watched() -> None:
    starts = {module for module, call in calls("start") if ast.unparse(call.func) == "program_start.start"}
    assert starts == {"zfs/streams.py", "mysql/process/programs.py", "mysql/process/process_managers.py"}
    assert "_WatchedPipe" in ast.unparse(parsed("zfs/streams.py"))
