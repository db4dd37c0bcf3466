"""The API, from HTTP to the commands that the helper runs: the same messages, hints and codes as the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.issuers import FakeIssuer
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import request
from zsnapdb.serve import page_app
from zsnapdb.serve.api_answers import BodyLimit
from zsnapdb.serve.helper_messages import HelperClient
from zsnapdb.serve.page_app import create_site
from zsnapdb.serve.roles import Role

PROBLEM = "application/problem+json"
MINE = {"name": "mine", "owner": "ci:shop/web"}
THEIRS = {"name": "theirs", "owner": "ann"}


def test_a_clone_from_its_making_to_its_end(host: ServeHost) -> None:
    token = host.token("ci:shop/web")
    assert request(host, "GET", "/instances", token).json()["instances"][0]["name"] == "main"
    made = request(host, "POST", "/clones", token, json={"instance": "main", "name": "mine"})
    assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
    assert made.json()["password"] == "secret of the clone"
    assert request(host, "GET", "/clones", token).json()["clones"] == [made.json()["clone"]]
    assert request(host, "GET", "/clones/mine", token).json()["clone"] == made.json()["clone"]
    assert request(host, "POST", "/clones/mine/reset", token).status_code == 200
    assert request(host, "POST", "/clones/mine/extend", token, json={"ttl": "3h"}).status_code == 200
    assert request(host, "DELETE", "/clones/mine", token).status_code == 200
    gone = request(host, "GET", "/clones/mine", token)
    assert (gone.status_code, gone.headers["Content-Type"]) == (404, PROBLEM)
    assert [call.words[1] for call in host.calls()] == ["create", "reset", "extend", "destroy"]
    assert "--ttl=10800.000s" in host.calls()[2].words


def test_without_a_good_token_the_answer_is_401(host: ServeHost) -> None:
    expired = host.token("ci:shop/web", seconds=1)
    host.pass_time(60)
    answers = {
        (answer.status_code, answer.headers["WWW-Authenticate"], answer.text)
        for token in ("", "x", expired)
        for answer in (request(host, "GET", "/clones", token),)
    }
    assert len(answers) == 1
    assert answers.pop()[:2] == (401, "Bearer")
    for header in ("Basic eDp4", "Bearer", "Bearer ", "Bearer a b", f"Bearer {'x' * 5000}", "zsnapdb"):
        assert request(host, "GET", "/clones", headers={"Authorization": header}).status_code == 401


def test_an_id_token_of_some_thousand_characters_is_a_bearer_credential(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    issuer = FakeIssuer(tmp_path / "issuers", host.now)
    issuer.known.fetch_due()
    host.id_tokens = issuer.tokens
    with host.helper():
        token = issuer.token(groups=[f"group {number}" for number in range(270)])
        assert len(token) > 5000
        assert request(host, "GET", "/instances", token).status_code == 200
        assert request(host, "GET", "/instances", issuer.token(aud="x")).status_code == 401
        assert request(host, "GET", "/instances", issuer.token(more="x" * 65536)).status_code == 401


def test_anothers_clone_is_as_one_that_is_not_there(host: ServeHost) -> None:
    host.clones(THEIRS)
    token = host.token("ci:shop/web")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/reset")):
        theirs, nothing = (request(host, method, f"/clones/{name}{path}", token) for name in ("theirs", "nothing"))
        assert theirs.status_code == nothing.status_code == 404
        assert theirs.text.replace("theirs", "nothing") == nothing.text
    assert host.calls() == []


BRANCH_PATHS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("GET", "branches", {}),
    ("POST", "branches", {"json": {"branch": "f/x", "from": "main"}}),
    ("POST", "switch", {"json": {"branch": "f/x"}}),
    ("GET", "commits?of=f/x", {}),
    ("POST", "diff", {"json": {"before": "main", "after": "f/x", "limit": 3}}),
    ("DELETE", "branches?branch=f/x", {}),
)


def test_each_path_of_branches_runs_its_command_and_is_hidden_where_the_clone_is_anothers(host: ServeHost) -> None:
    host.clones(MINE, THEIRS)
    token = host.token("ci:shop/web")
    for verb in ("list", "create", "switch", "log", "diff", "delete"):
        host.prints(f"branch-{verb}", {"kind": "told", "verb": verb})
    for method, path, body in BRANCH_PATHS:
        theirs, nothing = (request(host, method, f"/clones/{one}/{path}", token, **body) for one in ("theirs", "none"))
        assert (theirs.status_code, theirs.text.replace("theirs", "none")) == (404, nothing.text)
    assert host.calls() == []
    answers = [request(host, method, f"/clones/mine/{path}", token, **body) for method, path, body in BRANCH_PATHS]
    assert [one.status_code for one in answers] == [200, 201, 200, 200, 200, 200]
    assert [call.words[1:] for call in host.calls()] == [
        ("branch", "list", "mine", "--json"),
        ("branch", "create", "--from=main", "--json", "mine", "f/x"),
        ("branch", "switch", "--json", "mine", "f/x"),
        ("branch", "log", "mine", "f/x", "--json"),
        ("branch", "diff", "--limit=3", "--size=262144B", "--json", "mine", "main", "f/x"),
        ("branch", "delete", "--json", "mine", "f/x"),
    ]


@pytest.mark.parametrize("name", ["../x", "a\0", "--config", "", "x" * 61, "ä"])
def test_a_branch_that_is_none_and_a_field_that_is_not_known_are_422(host: ServeHost, name: str) -> None:
    host.clones(MINE)
    token = host.token("ci:shop/web")
    hostile = [
        *(
            request(host, "POST", f"/clones/mine/{path}", token, json={"branch": name})
            for path in ("branches", "switch")
        ),
        request(host, "POST", "/clones/mine/branches", token, json={"branch": "x", "from": name}),
        request(host, "POST", "/clones/mine/switch", token, json={"branch": "x", "config": name}),
        request(host, "POST", "/clones/mine/diff", token, json={"before": "x", "after": name}),
        request(host, "POST", "/clones/mine/diff", token, json={"before": "x", "after": "y", "size": "9GiB"}),
        request(host, "GET", "/clones/mine/commits", token, params={"of": name}),
        request(host, "GET", "/clones/mine/commits", token, params={"config": "x"}),
        request(host, "DELETE", "/clones/mine/branches", token, params={"branch": name}),
    ]
    assert {(one.status_code, one.headers["Content-Type"]) for one in hostile} == {(422, PROBLEM)}
    assert host.calls() == []


def test_a_role_that_may_not_is_told_403(host: ServeHost) -> None:
    host.clones(MINE)
    answer = request(host, "DELETE", "/clones/mine", host.token("ci:shop/web", Role.VIEWER))
    assert (answer.status_code, answer.json()["code"]) == (403, "not-allowed")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 60_000,
        b"{}",
        b'{"instance": "main", "owner": "root"}',
        b'{"instance": "main", "mask": null}',
        b'{"instance": "main", "mask": "no"}',
        b'{"instance": "../main"}',
        b'{"instance": "main", "name": "--config"}',
        b'{"instance": "main", "name": "mine\\u0000"}',
        b'{"instance": "main", "at": "--config=/tmp/x"}',
        b'{"instance": "unknown"}',
        b'{"instance": "main", "ttl": "9d"}',
    ],
    ids=range(15),
)
def test_a_body_that_is_not_known_is_422_and_runs_nothing(host: ServeHost, body: bytes) -> None:
    token = host.token("ci:shop/web", Role.OPERATOR)
    answer = request(host, "POST", "/clones", token, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["Content-Type"], answer.json()["code"]) == (422, PROBLEM, "usage")
    assert set(answer.json()) <= {"type", "title", "status", "detail", "code", "hint", "exit_code"}
    assert host.calls() == []


@pytest.mark.parametrize("name", ["..%2Fx", "%00", "x%0A", "-x", "--config", "A", "a" * 33, "%C3%A4", "{{7*7}}"])
def test_a_name_that_is_none_reaches_no_command(host: ServeHost, name: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/reset")):
        answer = request(host, method, f"/clones/{name}{path}", host.token("ci:shop/web", Role.OPERATOR))
        assert answer.status_code in (404, 422)
        assert answer.headers["Content-Type"] == PROBLEM
    assert host.calls() == []


def test_a_large_body_is_413_before_it_is_parsed(host: ServeHost) -> None:
    body = b'{"instance": "main", "name": "' + b"x" * (1 << 20) + b'"}'
    answer = request(host, "POST", "/clones", host.token("ci:shop/web"), content=body)
    assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
    assert answer.headers["Connection"] == "close", "what comes after it is not read"


def test_a_body_that_does_not_come_is_408_and_its_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "_FORM_SECONDS", 0.05)
    site = create_site(HelperClient(Path("/nonexistent")))
    type_of_form = [(b"content-type", b"application/x-www-form-urlencoded")]

    async def sent(app: Any, path: str) -> tuple[int, dict[bytes, bytes]]:
        came, messages = [b"a"], list[Any]()

        async def receive() -> dict[str, Any]:
            if not came:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": came.pop(), "more_body": True}

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "scheme": "http",
            "headers": type_of_form,
            "query_string": b"",
            "root_path": "",
            "server": ("127.0.0.1", 9808),
            "http_version": "1.1",
        }
        await asyncio.wait_for(app(scope, receive, send), 20)
        return messages[0]["status"], dict(messages[0]["headers"])

    for app, path in ((BodyLimit(site, 0.05), "/api/v1/clones"), (site, "/login")):
        status, headers = asyncio.run(sent(app, path))
        assert (status, headers[b"connection"]) == (408, b"close")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/clones/mine/protect", {}),
        ("POST", "/clones/mine/protect", {"for": "2h", "owner": "root"}),
        ("POST", "/clones/mine/protect", {"for": "forever"}),
        ("POST", "/clones/mine/commit", {"message": "a\nb"}),
        ("POST", "/clones/mine/commit", {"text": "x"}),
        ("GET", "/clones/mine/logs?lines=0", None),
        ("GET", "/clones/mine/logs?file=/etc/passwd", None),
        ("GET", "/drills", None),
        ("GET", "/drills?instance=--config", None),
        ("GET", "/evidence?instance=main&after=-1", None),
        ("GET", "/evidence?instance=main&limit=501", None),
        ("GET", "/evidence?instance=main&key=x", None),
        ("GET", "/instances/--all/points", None),
        ("DELETE", "/operations/..%2Fx", None),
        ("DELETE", "/operations/x", None),
    ],
)
def test_what_is_not_known_is_422_and_runs_nothing(host: ServeHost, method: str, path: str, body: object) -> None:
    host.clones(MINE)
    token = host.token("ci:shop/web", Role.OPERATOR)
    answer = request(host, method, path, token, **({"json": body} if body is not None else {}))
    assert (answer.status_code in (404, 422), answer.headers["Content-Type"]) == (True, PROBLEM), answer.text
    assert answer.status_code == 422 or "%2F" in path
    assert host.calls() == []


def test_the_later_life_of_a_clone(host: ServeHost) -> None:
    host.clones(MINE)
    host.prints("logs", {"kind": "clone-logs", "clone": "mine", "lines": ["ready"], "file": "/srv/x"})
    host.prints("report", {"instance": "main", "records": [], "not_believed": [], "next": None})
    token = host.token("ci:shop/web")
    for path, body in (
        ("protect", {"for": "2h"}),
        ("unprotect", None),
        ("stop", None),
        ("start", None),
        ("commit", {"message": "before"}),
        ("commit", None),
    ):
        options = {"json": body} if body is not None else {}
        assert request(host, "POST", f"/clones/mine/{path}", token, **options).status_code == 200, path
    assert request(host, "GET", "/clones/mine/logs?lines=7", token).json() == {"clone": "mine", "lines": ["ready"]}
    assert request(host, "GET", "/evidence?instance=main", token).status_code == 403
    auditor = host.token("ci:shop/web", Role.AUDITOR)
    assert request(host, "GET", "/evidence?instance=main&after=3", auditor).json()["next"] is None


def test_a_cancelled_operation_is_a_problem_that_says_so(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    with host.helper() as desk:
        token = host.token("ci:shop/web")
        where = request(host, "POST", "/clones", token, json={"instance": "main"}).headers["Location"]
        operation = where.removeprefix("/api/v1")
        host.waits_for("waits")
        desk.patience = 20
        assert request(host, "DELETE", operation, token).json()["state"] == "cancelled"
        told = request(host, "GET", operation, token)
        assert (told.status_code, told.json()["code"], told.json()["exit_code"]) == (409, "cancelled", 130)
        assert request(host, "DELETE", operation, host.token("ci:other")).status_code == 404


def test_a_quota_is_409_and_says_what_uses_it(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, per_subject=1)
    host.clones(MINE)
    with host.helper():
        answer = request(host, "POST", "/clones", host.token("ci:shop/web"), json={"instance": "main"})
    assert (answer.status_code, answer.json()["code"]) == (409, "quota")
    assert "(mine), and serve.per_subject is 1" in answer.json()["detail"]


def test_what_takes_long_is_202_and_then_an_operation(tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "60")
    with host.helper() as desk:
        token = host.token("ci:shop/web")
        options = {"json": {"instance": "main"}, "headers": {"Idempotency-Key": "build-7"}}
        begun = request(host, "POST", "/clones", token, **options)
        assert begun.status_code == 202
        where = begun.headers["Location"].removeprefix("/api/v1")
        assert request(host, "POST", "/clones", token, **options).headers["Location"] == begun.headers["Location"]
        assert request(host, "GET", where, token).status_code == 202
        # Whoever asked may be another process by now: each request here has an application of its own.
        host.let("go", "")
        desk.operations.settle(20)
        ended = request(host, "GET", where, token)
        assert (ended.status_code, ended.json()["password"]) == (200, "secret of the clone")
        assert request(host, "GET", where, host.token("ci:other")).status_code == 404
    assert len(host.calls()) == 1


def test_a_failed_command_has_its_message_hint_and_code(host: ServeHost) -> None:
    host.let("fails", json.dumps({"error": {"code": "exists", "message": "the clone exists", "hint": "another name"}}))
    answer = request(host, "POST", "/clones", host.token("ci:shop/web"), json={"instance": "main", "name": "mine"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (409, PROBLEM)
    assert answer.json() == {
        "type": "about:blank",
        "title": "exists",
        "status": 409,
        "detail": "the clone exists",
        "code": "exists",
        "hint": "another name",
        "exit_code": 7,
    }


def test_without_a_helper_the_answer_is_503(tmp_path: Path) -> None:
    answer = request(ServeHost(tmp_path), "GET", "/clones", "x")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


def test_other_paths_and_methods_are_problems_too(host: ServeHost) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("PUT", "/clones", 405), ("GET", "/clones/", 404)):
        answer = request(host, method, path)
        assert (answer.status_code, answer.headers["Content-Type"]) == (status, PROBLEM)


def test_the_schema_says_what_is_known(host: ServeHost) -> None:
    schema = request(host, "GET", "/openapi.json").json()
    assert set(schema["paths"]) == {
        "/api/v1/instances",
        "/api/v1/clones",
        "/api/v1/clones/{name}",
        "/api/v1/clones/{name}/reset",
        "/api/v1/clones/{name}/start",
        "/api/v1/clones/{name}/stop",
        "/api/v1/clones/{name}/extend",
        "/api/v1/clones/{name}/protect",
        "/api/v1/clones/{name}/unprotect",
        "/api/v1/clones/{name}/commit",
        "/api/v1/clones/{name}/branches",
        "/api/v1/clones/{name}/switch",
        "/api/v1/clones/{name}/commits",
        "/api/v1/clones/{name}/diff",
        "/api/v1/clones/{name}/logs",
        "/api/v1/clones/{name}/login",
        "/api/v1/clones/{name}/heartbeat",
        "/api/v1/operations/{id}",
        "/api/v1/operations/{id}/events",
        "/api/v1/instances/{name}/points",
        "/api/v1/objectives",
        "/api/v1/drills",
        "/api/v1/evidence",
        "/api/v1/fleet",
    }
    assert schema["components"]["securitySchemes"]["HTTPBearer"] == {"type": "http", "scheme": "bearer"}
    assert all(one["security"] for methods in schema["paths"].values() for one in methods.values())
    assert schema["components"]["schemas"]["NewClone"]["additionalProperties"] is False
