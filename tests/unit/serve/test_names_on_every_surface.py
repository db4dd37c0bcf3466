"""What a subject reads of a host full of other people's names, by the API, the pages and the tools of agents.

The paths, pages and tools are those of their registries: a new one is tried without a change here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp.client.client import Client as AgentClient

from tests.unit.support.page_browser import PageBrowser
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served
from zsnapdb.base import run_context
from zsnapdb.client.http import Client
from zsnapdb.mcp.server import server_of
from zsnapdb.mcp.tools import Toolbox
from zsnapdb.serve import api_app, page_app
from zsnapdb.serve.browser_pages import BrowserPages
from zsnapdb.serve.clone_documents import OwnedCommit
from zsnapdb.serve.operations import OperationRecord
from zsnapdb.serve.page_app import create_site
from zsnapdb.serve.roles import Role, VerbKind
from zsnapdb.verbs.requests import VERBS

SUBJECT, OTHER = "ci:shop/web", "user:boss@rival.example"
FOREIGN, MISSING = "merger-with-acme", "nothing-of-that"
PLANTED = {
    FOREIGN, "acme-secret-branch", "vault/acme", "23999", "layoffs", "20260101t000000z-beef", OTHER, "rival",
    "pid 4711", "prepared-for-acme", "10.99.99.99", "ci:shop/api", "token-of-boss",
}  # fmt: skip
SAYS = f"clone {FOREIGN} of {OTHER} lies at vault/acme on port 23999; prepared-for-acme waits for pid 4711"
BODIES: tuple[dict[str, object] | None, ...] = (
    None,
    {"instance": "main", "name": FOREIGN},
    {"instance": "main", "from": "20260101T000000Z-beef"},
    {"instance": "secret"},
    {"ttl": "1h"},
    {"for": "1h"},
    {"message": "mine"},
    {"branch": "acme-branch"},
    {"before": "one", "after": "two"},
)
NAMES = (FOREIGN, "layoffs", MISSING, "mine")
QUERY = "?instance=main&branch=acme-branch&of=one&lines=5"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ServeHost]:
    made = ServeHost(tmp_path, patience=20.0, more='[serve.project."ci:shop"]\nclones = 2')
    made.clones(
        {"name": "mine", "owner": SUBJECT},
        {"name": "api", "id": "api", "owner": "ci:shop/api"},
        {
            "name": FOREIGN, "id": "layoffs", "owner": OTHER, "dataset": "vault/acme", "port": 23999,
            "bind_address": "10.99.99.99", "branch": "acme-secret-branch", "set": "acme",
        },
    )  # fmt: skip
    made.commits.append(OwnedCommit("20260101T000000Z-beef", OTHER))
    made.let("undeclared", "yes")
    made.let("fails", json.dumps({"error": {"code": "preflight", "message": SAYS, "hint": f"existing: {SAYS}"}}))
    with made.helper() as desk:
        begun = OperationRecord(
            id=run_context.new_run_id(), subject=OTHER, verb=VerbKind.CLONE_CREATE, clone=FOREIGN, request="0" * 64,
            started=datetime.now(UTC),
        )  # fmt: skip
        desk.operations._known[begun.id] = begun
        made.let("operation", begun.id)
        yield made
        desk.operations._known.pop(begun.id)


def operations(host: ServeHost) -> tuple[str, str]:
    """Return the id of an operation of somebody else, and one that nothing has."""
    return (host.folder / "fake" / "operation").read_text(), run_context.new_run_id()


def check(text: str, *asked: object) -> None:
    said, question = text.lower(), json.dumps(asked).lower()
    assert not {name for name in PLANTED if name in said and name not in question}, text


def paths(template: str, host: ServeHost) -> Iterator[str]:
    if "{name}" in template:
        yield from (
            template.replace("{name}", name) for name in ("main", *NAMES) if name != "main" or "inst" in template
        )
    elif "{" in template:
        field = template[template.index("{") : template.index("}") + 1]
        yield from (template.replace(field, one) for one in operations(host))
    else:
        yield template


ROUTES = [(verb.route.path, verb.route.method) for verb in VERBS if verb.route is not None]
ROUTES.append(("/operations/{id}/events", "GET"))


@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEVELOPER])
def test_the_api_names_nothing_of_others(host: ServeHost, role: Role) -> None:
    token = {"Authorization": f"Bearer {host.token(SUBJECT, role)}"}
    browser = PageBrowser(create_site(host.client))
    seen = 0
    for template, method in ROUTES:
        for path in paths(template, host):
            for body in BODIES if method == "POST" else (None,):
                answer = browser.send(method, f"/api/v1{path}{QUERY}", token, json=body)
                assert answer.status_code < 500 or answer.json()["code"] != "internal", answer.text
                check(answer.text + json.dumps(dict(answer.headers)), path, body)
                seen += 1
    assert seen > 100


@pytest.mark.parametrize("role", [Role.VIEWER, Role.DEVELOPER])
def test_the_pages_name_nothing_of_others(host: ServeHost, role: Role) -> None:
    browser = PageBrowser(create_site(host.client))
    assert browser.log_in(host.token(SUBJECT, role)).status_code == 303
    csrf = browser.page("/").form("/logout").fields
    written = {"instance": "main", "name": FOREIGN, "for": "1h", "ttl": "1h", "message": "mine", "confirm": "yes"}
    templates = page_app._paths(BrowserPages(host.client, lambda: datetime.now(UTC)))
    for method, template, _ in templates:
        for path in paths(template, host):
            if path in ("/login", "/logout"):
                continue
            answer = (
                browser.get(path + "?instance=main") if method == "GET" else browser.post(path, {**csrf, **written})
            )
            check(answer.text + json.dumps(dict(answer.headers)), path, written if method == "POST" else None)
            assert answer.status_code != 500, (path, answer.text)


def test_what_is_of_others_is_as_what_is_not_there_by_the_api(host: ServeHost) -> None:
    """The same status, words and headers, after the same commands."""
    token = {"Authorization": f"Bearer {host.token(SUBJECT)}"}
    browser = PageBrowser(create_site(host.client))
    for template, method in ROUTES:
        if "{" not in template or "instances" in template:
            continue
        names = (FOREIGN, "layoffs", MISSING) if "{name}" in template else operations(host)
        field = template[template.index("{") : template.index("}") + 1]
        for body in BODIES if method == "POST" else (None,):
            seen = []
            for name in names:
                before = len(host.calls())
                answer = browser.send(method, f"/api/v1{template.replace(field, name)}{QUERY}", token, json=body)
                shown = {key: value for key, value in answer.headers.items() if key not in ("content-length", "date")}
                seen.append((answer.status_code, answer.text.replace(name, "X"), shown, len(host.calls()) - before))
            assert all(one == seen[0] for one in seen), (template, seen)


def test_the_tools_of_an_agent_name_nothing_of_others(host: ServeHost) -> None:
    words = {"clone": NAMES, "instance": ("main", "secret"), "name": (FOREIGN, "new"), "sql": ("SELECT 1",)}

    async def tried(client: Client) -> int:
        count = 0
        async with AgentClient(server_of(Toolbox(client))) as agent:
            for tool in (await agent.list_tools()).tools:
                needed = tool.input_schema.get("required", [])
                for number in range(len(NAMES)):
                    arguments: dict[str, Any] = {key: words[key][number % len(words[key])] for key in needed}
                    if "name" in tool.input_schema.get("properties", {}):
                        arguments["name"] = words["name"][number % 2]
                    answer = await agent.call_tool(tool.name, arguments)
                    check("".join(getattr(part, "text", "") for part in answer.content), arguments)
                    count += 1
        return count

    with served(host) as url, Client(url, host.token(SUBJECT)) as client:
        assert asyncio.run(tried(client)) >= 20


TIMES = st.sampled_from(
    (
        *("", "\0", "@", "@latest", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2262-04-11T23:47:16Z"),
        *("2016-12-31T23:59:60Z", "NaN", "inf", "9" * 400, "٢٠٢٦-01-01", "20260101T000000Z-beef", "latest", "--plan"),
        *(
            "2026-01-01 00:00 ../../etc/passwd",
            "\uff11\uff48",
            "-1h",
            "1e9h",
            "999999999w",
            "0s",
            " ",
            "x" * 1001,
            "\ud7ff",
        ),
    )
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(("at", "from", "ttl", "name", "heartbeat", "profile", "instance")), text=TIMES | st.text())
def test_whatever_is_asked_for_is_a_typed_answer(host: ServeHost, field: str, text: str) -> None:
    host.let("fails", "")
    token = {"Authorization": f"Bearer {host.token(SUBJECT)}"}
    browser = PageBrowser(api_app.create_app(host.client))
    # A lone surrogate is no text of JSON.
    wanted = {"instance": "main", "name": "new", field: text.encode("utf-8", "replace").decode()}
    answer = browser.send("POST", "/api/v1/clones", token, json=wanted)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.json()["code"] not in ("", "internal"), answer.text
    assert "Traceback" not in answer.text
    check(answer.text, wanted)
