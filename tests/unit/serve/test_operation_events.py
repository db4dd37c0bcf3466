"""An operation is streamed to its end, also through a restart; slow, gone and too many clients cost nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served
from zsnapdb.base.errors import UnreachableError
from zsnapdb.serve.api_answers import OperationEvents
from zsnapdb.serve.helper_messages import Ending, HelperClient, HelperRequest, PendingAnswer, failure_of
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import CancelOperationVerb, CreateCloneVerb, NewClone

WEB = "ci:shop/web"


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[ServeHost]:
    """A host on which the making of a clone takes until it is let go on."""
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    with host.helper():
        yield host


def begin(host: ServeHost, token: str, name: str = "mine") -> str:
    answer = host.ask(token, CreateCloneVerb(wanted=NewClone(instance="main", name=name)))
    assert isinstance(answer, PendingAnswer), answer
    return f"/api/v1/operations/{answer.operation}/events"


def quick(host: ServeHost, **more: Any) -> OperationEvents:
    return OperationEvents(host.client, pause=lambda _: 0.05, **more)


@contextmanager
def stream(url: str, path: str, token: str, last: str = "") -> Iterator[httpx.Response]:
    headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last} if last else {})
    with (
        httpx.Client(base_url=url, timeout=120, verify=False) as client,
        client.stream("GET", path, headers=headers) as answer,
    ):
        yield answer


def events(answer: httpx.Response) -> list[dict[str, str]]:
    """Return the events of a stream to its end, without comments."""
    answer.read()
    found = [dict(line.split(": ", 1) for line in one.splitlines()) for one in answer.text.split("\n\n") if one]
    return [one for one in found if "event" in one]


def test_a_stream_tells_that_the_operation_began_and_how_it_ended(slow: ServeHost) -> None:
    token = slow.token(WEB)
    with served(slow, quick(slow)) as url:
        path = begin(slow, token)
        with stream(url, path, token) as answer:
            assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
            slow.let("go", "")
            begun, ended = events(answer)
        assert (begun["event"], begun["id"], json.loads(begun["data"])["operation"]) == (
            "begun",
            "1",
            path.split("/")[4],
        )
        told = json.loads(ended["data"])
        whole = httpx.get(url + path.removesuffix("/events"), headers={"Authorization": f"Bearer {token}"})
        assert (ended["event"], ended["id"], told["status"], told["body"]) == ("ended", "2", 200, whole.json())


def test_who_comes_back_gets_what_is_left_and_no_more_when_nothing_is(slow: ServeHost) -> None:
    token = slow.token(WEB)
    with served(slow, quick(slow)) as url:
        path = begin(slow, token)
        with stream(url, path, token) as answer:
            first = next(line for line in answer.iter_lines() if line.startswith("id:"))
        assert first == "id: 1"
    slow.let("go", "")
    # The web process is another one by now.
    with served(slow, quick(slow)) as url:
        with stream(url, path, token, "1") as answer:
            assert [one["event"] for one in events(answer)] == ["ended"]
        with stream(url, path, token, "2") as answer:
            assert (answer.status_code, answer.read()) == (204, b"")


def test_an_operation_that_failed_ends_its_stream_with_the_problem(slow: ServeHost) -> None:
    slow.let("fails", json.dumps({"error": {"code": "unknown-name", "message": "no\nsuch", "hint": "a\r\ndata: x"}}))
    token = slow.token(WEB)
    with served(slow, quick(slow)) as url, stream(url, begin(slow, token), token) as answer:
        slow.let("go", "")
        ended = events(answer)[-1]
    told = json.loads(ended["data"])
    assert (ended["event"], told["status"], told["body"]["code"]) == ("ended", 404, "unknown-name")


def test_a_stream_outlives_its_helper_and_ends_as_the_next_one_knows_the_operation(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    token, found = host.token(WEB), list[dict[str, str]]()
    with served(host, quick(host)) as url:
        with host.helper():
            path = begin(host, token)
            host.waits_for("waits")

        def follow() -> None:
            with stream(url, path, token, "1") as answer:
                found.extend(events(answer))

        # Its helper has stopped, and ended the command. A client that comes now finds nobody, and is to come back.
        with stream(url, path, token, "1") as answer:
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        host.let("slow", "")
        with host.helper():
            follow()
    assert [(one["event"], json.loads(one["data"])["status"]) for one in found] == [("ended", 504)]


def test_a_helper_that_is_away_for_a_moment_ends_no_stream(slow: ServeHost) -> None:
    token, asked = slow.token(WEB), list[int]()
    kept = quick(slow)

    @dataclass(frozen=True)
    class Flaky(HelperClient):
        def ask(self, request: HelperRequest) -> Ending:
            asked.append(1)
            if len(asked) > 3:
                slow.let("go", "")
            away = UnreachableError("the helper does not answer", hint="is it running?")
            return failure_of(away) if len(asked) in (2, 3) else slow.client.ask(request)

    kept.helper = Flaky(slow.socket)
    with served(slow, kept) as url, stream(url, begin(slow, token), token) as answer:
        assert [one["event"] for one in events(answer)] == ["begun", "ended"]
    assert len(asked) > 3


@pytest.mark.parametrize("path", ["20260101T000000Z-0000000000000000", "../x", "x" * 5000])
def test_what_is_not_there_or_anothers_is_no_stream(slow: ServeHost, path: str) -> None:
    theirs = begin(slow, slow.token("ci:shop/app"))
    with served(slow, quick(slow)) as url:
        for token, status in ((slow.token(WEB), 404), (slow.token(WEB, Role.OPERATOR), 404), ("x", 401)):
            with stream(url, theirs, token) as answer:
                assert answer.status_code == status
        with stream(url, f"/api/v1/operations/{path}/events", slow.token(WEB)) as answer:
            assert answer.status_code in (404, 422)


def test_a_token_that_is_revoked_ends_its_stream(slow: ServeHost) -> None:
    made = slow.book.create(WEB, Role.DEVELOPER, 3600, slow.now)
    token = made.text.get_secret_value()
    with served(slow, quick(slow)) as url, stream(url, begin(slow, token), token) as answer:
        slow.book.revoke(made.stored.id, slow.now)
        assert [one["event"] for one in events(answer)] == ["begun", "problem"]


def test_a_subject_has_so_many_streams_and_no_more_and_a_place_is_given_back(slow: ServeHost) -> None:
    slow.let("slow", "60")
    token, other = slow.token(WEB), slow.token("ci:shop/app")
    kept = quick(slow, most_of_subject=2, most=3)
    with served(slow, kept) as url:
        path, theirs = begin(slow, token), begin(slow, other, "other")
        with stream(url, path, token) as one:
            read = [one.iter_lines()]
            next(read[0])
            with stream(url, path, token) as two:
                read.append(two.iter_lines())
                next(read[1])
                with stream(url, path, token) as third:
                    assert (third.status_code, third.headers["Retry-After"]) == (503, "5")
                    assert "operations of ci:shop/web are streamed" in json.loads(third.read())["detail"]
                with stream(url, theirs, other) as another:
                    assert another.status_code == 200
        # Both clients have gone away without a word.
        deadline = time.monotonic() + 60
        while kept._open and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not kept._open
        with stream(url, path, token) as again:
            assert again.status_code == 200


def test_a_stream_has_an_end_and_a_client_that_never_reads_keeps_no_place(slow: ServeHost) -> None:
    slow.let("slow", "60")
    token = slow.token(WEB)
    kept = quick(slow, seconds=0.3)
    with served(slow, kept) as url:
        path = begin(slow, token)
        with stream(url, path, token) as answer:
            assert [one["event"] for one in events(answer)] == ["begun"]
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            deadline = time.monotonic() + 10
            while not kept._open and time.monotonic() < deadline:
                time.sleep(0.01)
            while kept._open and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not kept._open


def test_streams_take_no_thread_of_other_requests(slow: ServeHost) -> None:
    slow.let("slow", "60")
    token = slow.token(WEB)
    with served(slow, quick(slow, most_of_subject=60)) as url:
        path = begin(slow, token)
        ready, ended = threading.Barrier(46, timeout=120), list[str]()

        def hold() -> None:
            with stream(url, path, token) as answer:
                lines = answer.iter_lines()
                next(lines)
                ready.wait()
                ended.extend(line for line in lines if line == "event: ended")

        threads = [threading.Thread(target=hold) for _ in range(45)]
        for thread in threads:
            thread.start()
        ready.wait()
        # There are 40 threads for requests.
        answer = httpx.get(f"{url}/api/v1/instances", headers={"Authorization": f"Bearer {token}"}, timeout=120)
        assert answer.status_code == 200, answer
        slow.ask(token, CancelOperationVerb(id=path.split("/")[4]))
        for thread in threads:
            thread.join()
        assert len(ended) == 45


def test_an_operators_operation_is_streamed_to_no_lesser_token_of_its_subject(slow: ServeHost) -> None:
    operator = slow.token(WEB, Role.OPERATOR)
    with served(slow, quick(slow)) as url:
        path = begin(slow, operator)
        with stream(url, path, slow.token(WEB)) as answer:
            assert answer.status_code == 404
        slow.let("go", "")
        with stream(url, path, operator) as answer:
            assert json.loads(events(answer)[-1]["data"])["body"]["password"] == "secret of the clone"
