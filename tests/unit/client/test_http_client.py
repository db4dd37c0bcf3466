"""Programs get clones by HTTP: the errors of the command line, no clone too many, and no token where it can be read."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import certificates
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import LossyLine, served
from zsnapdb.client import api_protocol
from zsnapdb.client.api_protocol import ApiAnswer, ApiPause, ApiRequest, LostAnswer
from zsnapdb.client.clones import CloneCommandError
from zsnapdb.client.connection import connection
from zsnapdb.client.http import AsyncClient, Client
from zsnapdb.serve.roles import Role

SUBJECT = "ci:shop/web"
POINTS = {
    "instance": "main",
    "at": "now",
    "gaps": [],
    "recoverable": [{"from": "a", "to": "b", "backups": ["20260101T000000Z-0001"]}],
}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ServeHost]:
    made = ServeHost(tmp_path)
    with made.helper():
        yield made


@pytest.fixture
def url(host: ServeHost) -> Iterator[str]:
    with served(host) as where:
        yield where


@pytest.fixture
def client(host: ServeHost, url: str) -> Iterator[Client]:
    with Client(url, host.token(SUBJECT)) as made:
        yield made


def verbs(host: ServeHost) -> list[str]:
    return [call.words[1] for call in host.calls()]


def test_a_clone_is_there_for_a_block_and_goes_also_after_an_error(client: Client, host: ServeHost) -> None:
    def use() -> None:
        with client.clone("masked", "mine", at="2h", ttl="1h", mask=True) as clone:
            assert clone.url == "mysql://zsnapdb_clone:secret%20of%20the%20clone@127.0.0.1:23070/"
            assert (clone.name, clone.is_masked, "secret" in repr(clone)) == ("mine", True, False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    assert verbs(host) == ["create", "destroy"]
    assert {"--at=2h", "--ttl=3600.000s", "--mask"} <= set(host.calls()[0].words)


def test_the_holder_of_a_clone_beats_as_long_as_the_block_runs(client: Client, host: ServeHost, url: str) -> None:
    def beaten() -> None:
        host.beats.clear()
        deadline = time.monotonic() + 20
        while len(host.beats) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with client.clone("main", "mine", heartbeat=0.06):
        beaten()
    with client.clone("main", "quiet", heartbeat=None):
        assert "--heartbeat" not in str(host.calls()[-1].words)

    async def use() -> None:
        async with (
            AsyncClient(url, host.token(SUBJECT)) as later,
            later.clone("main", "other", heartbeat=0.06),
        ):
            await asyncio.to_thread(beaten)

    asyncio.run(use())
    assert set(host.beats) == {"other"}
    with client.clone("main", "usual") as clone:
        client.beat(clone)
        assert "--heartbeat=30s" in host.calls()[-1].words
        client.destroy(clone)
        with pytest.raises(CloneCommandError) as gone:
            client.beat(clone)
        assert gone.value.status == 404


def test_the_life_of_a_clone(client: Client, host: ServeHost) -> None:
    host.prints("list", {"sets": [{"backup_id": "20260101T000000Z-0001", "state": "stored"}]})
    host.prints("status", POINTS)
    host.prints("logs", {"clone": "mine", "lines": ["ready"]})
    assert [one.name for one in client.instances()] == ["main", "masked", "secret"]
    points = client.points("main")
    assert (points.recoverable[0].begin, points.sets[0].id) == ("a", "20260101T000000Z-0001")
    made = client.create("main", "mine", source=points.sets[0].id)
    assert client.get("mine").id == client.clones()[0].id == made.id
    assert (client.reset(made).way, client.reset(made).undone) == ("undo", 2)
    assert client.stop(made).pid is None
    assert client.start(made).pid is not None
    assert client.extend(made, "3h").name == "mine"
    assert client.protect(made, "2h").protected_until == "7200.000s"
    assert client.unprotect("mine").protected_until is None
    assert client.commit(made, "before").message == "before"
    assert client.logs(made, 7) == ("ready",)
    client.destroy(made)
    client.destroy(made)
    with pytest.raises(CloneCommandError) as gone:
        client.get(made)
    assert (gone.value.status, gone.value.code, gone.value.exit_code) == (404, "unknown-name", 2)


BRANCHES = {
    "clone": "mine",
    "current": "main",
    "branches": [{"name": "main", "head": None, "current": True, "created": None}],
    "made": None,
}
SWITCHED = {"branch": "f/x", "head": "c2", "left": "main", "left_head": "c1", "committed": True}
ROW = {"change": "changed", "key": [2], "before": [2, "two"], "after": [2, None]}
TABLE = {"table": "shop.words", "same": False, "by": "key", "reason": None, "rows_before": 3, "rows_after": 3}
TABLE |= {"added": 0, "removed": 0, "changed": 1, "columns": ["id", "word"], "changes": [ROW]}
DIFFERENCE = {"before": "c1", "after": "c2", "same": False, "schema_difference": "", "tables": [TABLE]}


def test_owner_gets_login_of_clone_again(client: Client, host: ServeHost, url: str) -> None:
    made = client.create("main", "mine")
    shown, renewed = client.login("mine"), client.login(made, new=True)
    assert (shown.password, renewed.password) == ("secret 1 of the clone", "secret 2 of the clone")
    assert (renewed.id, renewed.host, renewed.port) == (made.id, made.host, made.port)
    assert "secret" not in repr(renewed)

    async def again() -> str:
        async with AsyncClient(url, host.token(SUBJECT)) as other:
            return (await other.login("mine")).password

    assert asyncio.run(again()) == renewed.password
    with (
        Client(url, host.token("user:ann@example.org", Role.OPERATOR)) as other,
        pytest.raises(CloneCommandError) as no,
    ):
        other.login("mine", new=True)
    assert (no.value.status, "only the owner" in no.value.message) == (403, True)


def test_the_branches_of_a_clone(client: Client, host: ServeHost, url: str) -> None:
    made = client.create("main", "mine")
    for verb in ("list", "create", "delete"):
        host.prints(f"branch-{verb}", BRANCHES)
    clone = host.look().document["clones"][0]  # type: ignore[index]
    host.prints("branch-switch", {"clone": clone, **SWITCHED})
    host.prints("branch-log", {"commits": [{"id": "c1", "parent": None, "created": "1", "branches": ["main"]}]})
    host.prints("branch-diff", {**DIFFERENCE, "left_out": True})
    assert client.branches(made).branches[0].head is None
    assert client.create_branch(made, "f/x", "main").current == "main"
    switched = client.switch_branch(made, "f/x")
    assert (switched.branch, switched.left_head, switched.clone.name) == ("f/x", "c1", "mine")
    assert [one.id for one in client.commits(made, "f/x")] == ["c1"]
    difference = client.diff(made, "main", "f/x", limit=1)
    assert (difference.tables[0].changes[0].after, difference.left_out) == ((2, None), True)
    assert client.delete_branch(made, "f/x").clone == "mine"

    async def again() -> None:
        async with AsyncClient(url, host.token(SUBJECT)) as later:
            await later.branches(made)
            await later.create_branch(made, "f/x")
            await later.switch_branch(made, "f/x")
            await later.commits(made)
            await later.diff(made, "main", "f/x")
            await later.delete_branch(made, "f/x")

    asyncio.run(again())
    words = ["list", "create", "switch", "log", "diff", "delete"]
    assert [call.words[2] for call in host.calls() if call.words[1] == "branch"] == words * 2
    host.prints("branch-switch", {"error": {"code": "unknown-name", "message": "there is no branch", "hint": "x"}}, 2)
    # The error does not say what it names, so no more of it is told than its kind.
    with pytest.raises(CloneCommandError, match="names something that does not exist") as refused:
        client.switch_branch(made, "f/y")
    assert (refused.value.status, refused.value.code, refused.value.exit_code) == (404, "unknown-name", 2)


def test_a_clone_that_listens_everywhere_is_reached_at_the_host_of_the_url(host: ServeHost, client: Client) -> None:
    host.let("address", "0.0.0.0")
    assert client.create("main").host == "127.0.0.1"
    host.let("address", "192.0.2.7")
    assert client.create("main").host == "192.0.2.7"


def test_an_error_is_that_of_the_command_line(client: Client, host: ServeHost) -> None:
    failure = {"error": {"code": "exists", "message": "the clone exists", "hint": "another name"}}
    host.let("fails", json.dumps(failure))
    with pytest.raises(CloneCommandError, match=r"the clone exists\nhint: another name") as caught:
        client.create("main", "mine")
    assert (caught.value.code, caught.value.exit_code, caught.value.status) == ("exists", 7, 409)
    with pytest.raises(CloneCommandError) as unknown:
        client.create("../main")
    assert (unknown.value.code, unknown.value.status) == ("usage", 422)


def test_what_takes_long_is_waited_for(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "1")
    with host.helper(), served(host) as url, Client(url, host.token(SUBJECT)) as client:
        with client.clone("main", "mine") as clone:
            assert clone.user == "zsnapdb_clone"
        assert client.clones() == ()
    assert verbs(host) == ["create", "destroy"]


def test_a_lost_answer_makes_no_second_clone(host: ServeHost, url: str) -> None:
    line = LossyLine(int(url.rpartition(":")[2]), loses=2)
    with line.url() as lossy, Client(lossy, host.token(SUBJECT)) as client:
        made = client.create("main")
        assert [one.name for one in client.clones()] == [made.name]
        assert verbs(host) == ["create"]
        line.loses = 1
        client.destroy(made)
        assert verbs(host) == ["create", "destroy"]
        made, line.loses = client.create("main"), 2
        assert client.commit(made, "once").message == "once"
    assert verbs(host).count("commit") == 1


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("seconds", ["60", "0"], ids=["while it is made", "when it is made"])
def test_a_wait_that_is_interrupted_leaves_no_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", seconds)
    with host.helper() as desk, served(host) as url, Client(url, host.token(SUBJECT)) as client:
        ways = {"60": "_answered", "0": "parsed"}
        real = getattr(api_protocol, ways[seconds])
        calls: list[object] = []

        def interrupted(*words: Any) -> Any:
            calls.append(words)
            if len(calls) == 1:
                if seconds == "60":
                    # The request is sent, and nobody waits for its answer.
                    threading.Thread(target=lambda: client._run(real(*words)), daemon=True).start()
                    host.waits_for("waits")
                raise Interrupted
            return real(*words)

        monkeypatch.setattr(api_protocol, ways[seconds], interrupted)
        desk.patience = 20 if seconds == "0" else 0.1
        with pytest.raises(Interrupted), client.clone("main", "mine"):
            pass
        assert client.clones() == ()
    assert verbs(host) == (["create"] if seconds == "60" else ["create", "destroy"])


def test_programs_with_asyncio_have_the_same(host: ServeHost, url: str) -> None:
    async def use() -> None:
        async with AsyncClient(url, host.token(SUBJECT)) as client:
            async with client.clone("main", "mine") as clone:
                assert (await client.reset(clone)).undone == 2
                assert [one.id for one in await client.clones()] == ["mine"]
            with pytest.raises(CloneCommandError) as gone:
                await client.get("mine")
            assert gone.value.status == 404

    asyncio.run(use())
    assert verbs(host) == ["create", "reset", "destroy"]


def test_a_task_that_is_cancelled_while_it_waits_leaves_no_clone(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")

    async def use(url: str) -> None:
        async with AsyncClient(url, host.token(SUBJECT)) as client:

            async def wait() -> None:
                async with client.clone("main", "mine"):
                    raise AssertionError

            task = asyncio.create_task(wait())
            await asyncio.to_thread(host.waits_for, "waits")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with host.helper(), served(host) as url:
        asyncio.run(use(url))
        assert (tmp_path / "fake" / "undone").exists()


def test_both_have_the_same_methods() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(Client) == names(AsyncClient)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.AUDITOR])
def test_who_may_not_is_told_so(host: ServeHost, url: str, role: Role) -> None:
    with Client(url, host.token(SUBJECT, role)) as client, pytest.raises(CloneCommandError) as caught:
        client.create("main")
    assert (caught.value.status, caught.value.code) == (403, "not-allowed")


# How a request is repeated, without any time that passes.


def driven(asked: Any, *answers: ApiAnswer | LostAnswer) -> tuple[list[ApiRequest], Any]:
    """Give the answers to an exchange, and return what it asked for and what it returned or raised."""
    sent: list[ApiRequest] = []
    left, answer = list(answers), None
    while True:
        try:
            step = asked.send(answer)
        except StopIteration as ended:
            return sent, ended.value
        except CloneCommandError as error:
            return sent, error
        answer = None
        if isinstance(step, ApiRequest):
            sent.append(step)
            answer = left.pop(0)
        else:
            assert isinstance(step, ApiPause)
            assert 0 < step.seconds <= 30


BUSY = ApiAnswer(503, b'{"detail": "full", "code": "busy", "hint": "later", "exit_code": 75}', 5.0)
CLONES = ApiAnswer(200, b'{"clones": []}')


def test_a_busy_helper_is_asked_again_a_few_times() -> None:
    assert driven(api_protocol.clones(), BUSY, BUSY, CLONES)[1] == ()
    sent, error = driven(api_protocol.clones(), *[BUSY] * 6)
    assert (len(sent), error.code, error.status, error.exit_code) == (6, "busy", 503, 75)
    # Of a busy helper nothing was begun, so a commit is asked for again too.
    done = ApiAnswer(200, b'{"id": "x", "clone": "mine"}')
    assert driven(api_protocol.commit("mine", ""), BUSY, done)[1].id == "x"


def test_each_attempt_to_make_a_clone_has_the_same_key() -> None:
    sent, error = driven(api_protocol.create("main", key="build-7"), *[LostAnswer("reset by peer")] * 6)
    assert {request.headers["Idempotency-Key"] for request in sent} == {"build-7"}
    assert (error.code, error.exit_code) == ("unreachable", 6)


UNSENT = LostAnswer("refused", is_sent=False)


@pytest.mark.parametrize(
    ("asked", "lost", "may_have_run"),
    [
        (api_protocol.clones(), [LostAnswer("closed")] * 6, False),
        (api_protocol.get("mine"), [LostAnswer("closed")] * 6, False),
        (api_protocol.reset("mine"), [UNSENT] * 6, False),
        (api_protocol.reset("mine"), [LostAnswer("closed"), *[UNSENT] * 5], True),
        (api_protocol.destroy("mine"), [*[UNSENT] * 5, LostAnswer("closed")], True),
    ],
)
def test_only_sent_change_may_have_run(asked: Any, lost: list[LostAnswer], may_have_run: bool) -> None:
    _, error = driven(asked, *lost)
    assert ("may have been carried out" in error.hint) == may_have_run


def test_refused_connection_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_protocol, "_FIRST_PAUSE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def asks() -> None:
        async with AsyncClient(url, "x") as client:
            await client.reset("mine")

    ways: tuple[Callable[[], object], ...] = (lambda: Client(url, "x").reset("mine"), lambda: asyncio.run(asks()))
    for ask in ways:
        with pytest.raises(CloneCommandError) as caught:
            ask()
        assert caught.value.hint == "check that `zsnapdb serve` runs"


def test_unknown_certificate_is_refused_at_once(tmp_path: Path) -> None:
    own = certificates.make(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    attempts: list[int] = []

    def listen(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                attempts.append(1)
                with peer, suppress(OSError):
                    context.wrap_socket(peer, server_side=True).close()

    async def asks(url: str) -> None:
        async with AsyncClient(url, "x") as client:
            await client.reset("mine")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, args=(listener,), daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        ways: tuple[Callable[[], object], ...] = (
            lambda: Client(url, "x").reset("mine"),
            lambda: asyncio.run(asks(url)),
        )
        for ask in ways:
            with pytest.raises(CloneCommandError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                ask()
            assert (caught.value.code, caught.value.exit_code) == ("unreachable", 6)
            assert all(name in caught.value.hint for name in ("ca_file", "--tls-ca", "SSL_CERT_FILE"))
            assert "carried out" not in caught.value.hint
    assert len(attempts) == 2


def test_an_operation_is_asked_for_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ApiAnswer(202, b'{"operation": "20260101T000000Z-0123abcd"}')
    reset = ApiAnswer(200, b'{"way": "replace", "undone": null, "reason": "it was changed"}')
    sent, done = driven(api_protocol.reset("mine"), begun, begun, LostAnswer("closed"), begun, reset)
    assert [request.method for request in sent] == ["POST", "GET", "GET", "GET", "GET"]
    assert (done.way, done.undone, done.reason) == ("replace", None, "it was changed")
    clock = iter(range(0, 10**6, 1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    _, error = driven(api_protocol.reset("mine"), *[begun] * 6)
    assert "is still running" in error.message


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"clones": 7}', b'{"clones": [{"name": "x"}]}'])
def test_what_is_no_answer_of_zsnapdb_is_an_error(body: bytes) -> None:
    _, error = driven(api_protocol.clones(), ApiAnswer(200, body))
    assert "a document that this library does not know" in error.message
    _, error = driven(api_protocol.clones(), ApiAnswer(502, body))
    assert "not from zsnapdb" in error.message


# Where the token goes.


@pytest.mark.parametrize("name", ["../x", "a/b", "a?b", "a#b", "x y", "%2e"])
def test_a_name_is_one_part_of_a_path(name: str) -> None:
    ((request,), _) = driven(api_protocol.get(name), ApiAnswer(404, b"{}"))
    assert request.path.startswith("/clones/")
    assert request.path.count("/") == 2
    assert not set(request.path) & set("?# ")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "clones.example.org",
        "ftp://127.0.0.1",
        "http://clones.example.org",
        "http://192.0.2.7:9808",
        "http://localhost.example.org",
        "https://user:secret@clones.example.org",
        "https://clones.example.org/?token=x",
        "https://clones.example.org:port",
        "https://clones.example.org:99999",
        "https://[clones",
        "https://clones..example.org",
        "https://xn--zz--",
        "https://clones.example.org\x01",
    ],
)
def test_a_url_that_would_show_the_token_is_refused(url: str) -> None:
    with pytest.raises(CloneCommandError) as caught:
        Client(url, "zsnapdb_planted")
    assert (caught.value.exit_code, "planted" in str(caught.value)) == (2, False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://clones.example.org/z/", "http://127.0.0.1:9808", "http://[::1]:9808", "http://localhost"]
)
def test_https_and_this_host_are_asked(url: str) -> None:
    assert connection(url, "x").base == f"{url.rstrip('/')}/api/v1"


def test_http_to_elsewhere_is_for_who_asks_for_it() -> None:
    assert connection("http://192.0.2.7", "x", allows_http=True).host == "192.0.2.7"


@pytest.mark.parametrize("token", ["", "zsnapdb_planted\n", "zsnapdb planted", "zsnapdb_plantéd", "planted" * 2000])
def test_a_token_that_no_header_can_have_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(CloneCommandError) as caught:
        Client("http://127.0.0.1", token)
    assert "planted" not in repr(caught.value)
    assert "plant" not in str(caught.value)


def test_a_file_without_an_authority_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for name in ("empty.pem", "nothing.pem"):
        with pytest.raises(CloneCommandError, match=f"{name} has no certificate") as caught:
            Client("https://clones.example.org", "x", ca_file=tmp_path / name)
        assert caught.value.exit_code == 2


def test_url_and_token_are_read_from_the_environment_and_the_token_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZSNAPDB_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ZSNAPDB_TOKEN", "zsnapdb_planted")
    monkeypatch.setattr(api_protocol, "_FIRST_PAUSE", 0.0)
    with Client() as client:
        assert "planted" not in repr(client) + repr(vars(client)) + repr(client._to)
        assert client._to.token == "zsnapdb_planted"
        with pytest.raises(CloneCommandError) as caught:
            client.clones()
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "planted" not in repr(chain) + str(chain)
        chain = chain.__cause__ or chain.__context__


def test_a_redirection_is_not_followed() -> None:
    ((request,), error) = driven(api_protocol.clones(), ApiAnswer(307, b""))
    assert (request.path, error.status) == ("/clones", 307)


@contextmanager
def answering(head: bytes, part: bytes) -> Iterator[str]:
    """Answer each request with the head, and then with the part until nobody listens any more."""

    def answer(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
            while True:
                peer.sendall(part)

    def listen(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_answer_without_end_is_an_error() -> None:
    async def asks(url: str) -> None:
        async with AsyncClient(url, "x") as client:
            await client.clones()

    with answering(b"", b" " * 65536) as url:
        with Client(url, "x") as client, pytest.raises(CloneCommandError, match="longer than 16 MiB"):
            client.clones()
        with pytest.raises(CloneCommandError, match="longer than 16 MiB"):
            asyncio.run(asks(url))


def test_what_is_compressed_although_nobody_asked_for_it_is_not_unpacked() -> None:
    text = gzip.compress(b'{"clones": []}')
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(text)
    refused = pytest.raises(CloneCommandError, match="does not know")
    with answering(head, text) as url, Client(url, "x") as client, refused:
        client.clones()


def test_each_method_of_a_clone_leaves_a_later_clone_alone(client: Client, host: ServeHost, url: str) -> None:
    made = client.create("main", "mine")
    rows: Any = host.look().document["clones"]
    host.clones({**rows[0], "guid": "4712", "heartbeat": 30})
    before = len(host.calls())
    arguments: dict[str, tuple[str, ...]] = {
        "protect": ("2h",),
        "create_branch": ("f/x",),
        "switch_branch": ("f/x",),
        "delete_branch": ("f/x",),
        "diff": ("main", "f/x"),
    }
    about_clone = {name for name in vars(api_protocol.CloneMethods) if not name.startswith("_")}
    about_clone -= {"create", "instances", "points", "clones", "destroy"}
    for name in sorted(about_clone):
        with pytest.raises(CloneCommandError, match="there is no clone mine") as gone:
            getattr(client, name)(made, *arguments.get(name, ()))
        assert (gone.value.status, gone.value.code) == (404, "unknown-name"), name
    client.destroy(made)

    async def again() -> None:
        async with AsyncClient(url, host.token(SUBJECT)) as other:
            with pytest.raises(CloneCommandError, match="there is no clone mine"):
                await other.reset(made)
            await other.destroy(made)

    asyncio.run(again())
    assert (len(host.calls()), host.beats) == (before, [])
    assert [one.guid for one in client.clones()] == ["4712"]
