"""The tools of `zsnapdb mcp`, from the client of the protocol to the commands that the helper runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as AgentClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from pydantic import SecretStr

from tests.unit.support.command_line import ENVIRONMENT, zsnapdb
from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served
from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.client import api_protocol
from zsnapdb.client.errors import CloneCommandError
from zsnapdb.client.http import Client
from zsnapdb.mcp.server import server_of
from zsnapdb.mcp.tools import Toolbox, ToolRights, client_of
from zsnapdb.mysql.limited_query import LimitedRows, QueryLimits
from zsnapdb.mysql.session import Address
from zsnapdb.serve.roles import Role


@dataclass
class FakeServer:
    """Stands for the server of a clone: keeps what it is asked."""

    asked: list[tuple[Address, str, str | None, bool]] = field(default_factory=list)

    def __call__(
        self,
        address: Address,
        password: SecretStr,
        sql: str,
        limits: QueryLimits,
        *,
        database: str | None,
        writes: bool,
    ) -> LimitedRows:
        assert password.get_secret_value() == "secret of the clone"
        self.asked.append((address, sql, database, writes))
        return LimitedRows(("n",), ((1,),), "there are more than 1 rows")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ServeHost]:
    made = ServeHost(tmp_path)
    with made.helper():
        yield made


@pytest.fixture
def url(host: ServeHost) -> Iterator[str]:
    with served(host) as url:
        yield url


@pytest.fixture
def service(host: ServeHost, url: str) -> Iterator[Client]:
    with Client(url, host.token("ci:shop/web")) as made:
        yield made


def call(tools: Toolbox, tool: str, /, **arguments: object) -> Any:
    """Call a tool as an agent does, and return its document, or the text of its error."""

    async def calls() -> Any:
        async with AgentClient(server_of(tools)) as client:
            answer = await client.call_tool(tool, arguments)
            text = "".join(getattr(part, "text", "") for part in answer.content)
            return text if answer.is_error else json.loads(text)

    return asyncio.run(calls())


def test_a_clone_from_its_making_to_its_end(host: ServeHost, service: Client) -> None:
    server = FakeServer()
    tools = Toolbox(service, ask=server)
    assert call(tools, "list_instances")["instances"][0]["name"] == "main"
    made = call(tools, "create_clone", instance="main", name="mine", ttl="1h")
    assert (made["clone"]["name"], made["clone"]["can_query"]) == ("mine", True)
    assert [one["name"] for one in call(tools, "list_clones")["clones"]] == ["mine"]
    assert call(tools, "query", clone="mine", sql="SELECT 1", database="shop") == {
        "columns": ["n"],
        "rows": [[1]],
        "left_out": "there are more than 1 rows",
    }
    ((address, sql, database, writes),) = server.asked
    assert (str(address), sql, database, writes) == ("zsnapdb_clone@127.0.0.1:23070", "SELECT 1", "shop", False)
    done = call(tools, "reset_clone", clone="mine")
    assert done == {"done": "reset", "name": "mine", "way": "undo", "undone": 2, "reason": None}
    assert call(tools, "destroy_clone", clone="mine") == {"done": "destroyed", "name": "mine"}
    assert [one.words[1] for one in host.calls()] == ["create", "reset", "destroy"]
    assert call(tools, "list_clones") == {"clones": []}


def test_no_password_and_no_token_reaches_the_agent_unless_logins_are_shown(host: ServeHost, service: Client) -> None:
    tools = Toolbox(service, ask=FakeServer())
    said = [
        call(tools, "create_clone", instance="main", name="mine"),
        call(tools, "create_clone", instance="main", name="mine"),
        call(tools, "create_clone", instance="nowhere"),
        call(tools, "list_clones"),
        call(tools, "query", clone="mine", sql="DROP TABLE t"),
        repr(tools),
    ]
    text = json.dumps(said, default=str)
    assert "secret of the clone" not in text
    assert service._to.token not in text
    shown = Toolbox(service, ToolRights(shows_logins=True))
    assert call(shown, "create_clone", instance="main")["clone"]["password"] == "secret of the clone"


def test_what_is_refused_is_told_with_its_hint_and_runs_nothing(host: ServeHost, service: Client) -> None:
    host.clones({"name": "theirs", "owner": "ann"})
    server = FakeServer()
    tools = Toolbox(service, ask=server)
    assert "there is no clone theirs" in call(tools, "destroy_clone", clone="theirs")
    assert "there is no clone theirs" in call(tools, "reset_clone", clone="theirs")
    assert "no credentials for a clone theirs" in call(tools, "query", clone="theirs", sql="SELECT 1")
    for name in ("../instances", "x/reset", "", "A", "a" * 33, "x?y", "-x"):
        assert "the name of a clone" in call(tools, "destroy_clone", clone=name)
        assert "the name of a clone" in call(tools, "create_clone", instance="main", name=name)
    assert "hint: " in call(tools, "create_clone", instance="nowhere")
    assert "not masked" in call(tools, "create_clone", instance="secret")
    call(tools, "create_clone", instance="main", name="mine")
    for sql in ("DELETE FROM t", "SET SESSION transaction_read_only = 0", "/*! DROP TABLE t */", ""):
        assert "only statements that begin with" in call(tools, "query", clone="mine", sql=sql)
    assert server.asked == []
    assert [one.words[1] for one in host.calls()] == ["create"]


def test_a_viewer_makes_nothing(host: ServeHost, url: str) -> None:
    with Client(url, host.token("ci:shop/web", Role.VIEWER)) as service:
        tools = Toolbox(service)
        assert "may not use clone.create" in call(tools, "create_clone", instance="main")
        assert tools.end() == []


def test_data_is_changed_only_if_the_person_allows_it(service: Client) -> None:
    server = FakeServer()
    tools = Toolbox(service, ToolRights(writes=True), ask=server)
    call(tools, "create_clone", instance="main", name="mine")
    call(tools, "query", clone="mine", sql="DELETE FROM t")
    assert [(sql, writes) for _, sql, _, writes in server.asked] == [("DELETE FROM t", True)]

    async def hints(of: Toolbox) -> Mapping[str, tuple[bool | None, bool | None]]:
        async with AgentClient(server_of(of)) as client:
            listed = (await client.list_tools()).tools
            return {
                one.name: (one.annotations.read_only_hint, one.annotations.destructive_hint)
                for one in listed
                if one.annotations is not None
            }

    assert asyncio.run(hints(tools))["query"] == (False, True)
    assert asyncio.run(hints(Toolbox(service))) == {
        "list_instances": (True, None),
        "list_clones": (True, None),
        "query": (True, False),
        "create_clone": (False, False),
        "reset_clone": (False, True),
        "destroy_clone": (False, True),
    }


def test_what_takes_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "1")
    with host.helper(), served(host) as url, Client(url, host.token("ci:shop/web")) as service:
        tools = Toolbox(service)
        assert call(tools, "create_clone", instance="main", name="mine")["clone"]["can_query"] is True
        host.let("slow", "60")
        left = Toolbox(service)
        with monkeypatch.context() as impatient:
            impatient.setattr(api_protocol, "SECONDS", 0.2)
            assert "is still running" in call(left, "create_clone", instance="main")
        # What was begun under a name of ours is destroyed although nobody was told that it is there.
        host.let("go", "")
        deadline = time.monotonic() + 120
        while len(host.look().document["clones"]) < 2 and time.monotonic() < deadline:  # type: ignore[arg-type]
            time.sleep(0.05)
        assert left.end() == []
        assert [one.words[1] for one in host.calls()] == ["create", "create", "destroy"]


def test_the_end_destroys_what_this_session_made_and_nothing_else(host: ServeHost, service: Client) -> None:
    tools = Toolbox(service)
    service.create("main", "before")
    host.let("fails", json.dumps({"error": {"code": "exists", "message": "before exists", "hint": "choose another"}}))
    assert "before exists\nhint: choose another" in call(tools, "create_clone", instance="main", name="before")
    host.let("fails", "")
    call(tools, "create_clone", instance="main", name="mine")
    call(tools, "create_clone", instance="main")
    call(tools, "create_clone", instance="main", name="gone")
    service.destroy("gone")
    assert tools.end() == []
    assert [one.name for one in service.clones()] == ["before"]
    assert tools.end() == []


def test_end_of_a_session_spares_a_later_clone_of_the_same_name(host: ServeHost, service: Client) -> None:
    tools = Toolbox(service)
    call(tools, "create_clone", instance="main", name="mine")
    made = service.get("mine")
    rows: Any = host.look().document["clones"]
    host.clones({**rows[0], "guid": "4712"})
    for tool in ("reset_clone", "destroy_clone"):
        assert "there is no clone mine" in call(tools, tool, clone="mine")
    assert tools.end() == []
    service.destroy(made)
    assert [one.guid for one in service.clones()] == ["4712"]
    service.destroy("mine")
    assert service.clones() == ()


def test_a_clones_server_is_reached_where_the_service_or_the_person_says(host: ServeHost, service: Client) -> None:
    def host_of(bind: str, chosen: str | None = None) -> str:
        host.let("address", bind)
        server = FakeServer()
        tools = Toolbox(service, ToolRights(host=chosen), ask=server)
        made = call(tools, "create_clone", instance="main")["clone"]
        call(tools, "query", clone=made["name"], sql="SELECT 1")
        ((address, *_),) = server.asked
        assert made["host"] == address.host
        return address.host

    assert host_of("127.0.0.1") == "127.0.0.1"
    assert host_of("0.0.0.0") == "127.0.0.1"
    assert host_of("192.0.2.1") == "192.0.2.1"
    assert host_of("192.0.2.1", "tunnel") == "tunnel"


def test_the_agent_is_told_when_its_clone_goes(host: ServeHost, service: Client) -> None:
    host.let("expires", "2026-01-01T02:00:00+00:00")
    tools = Toolbox(service)
    assert call(tools, "create_clone", instance="main", name="mine")["clone"]["expires"] == "2026-01-01T02:00:00+00:00"
    (listed,) = call(tools, "list_clones")["clones"]
    assert (listed["expires"], listed["phase"]) == ("2026-01-01T02:00:00+00:00", "ready")


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("", "t"),
        ("clones.example.org", "t"),
        ("file:///etc/passwd", "t"),
        ("http://clones.example.org", "t"),
        ("https://user:pass@clones.example.org", "t"),
        ("https://clones.example.org/?x", "t"),
        ("https://user:pass@clones.example.org:pass@", "t"),
        ("https://clones.example.org:port", "t"),
        ("https://clones.example.org:99999", "t"),
        ("https://[clones", "t"),
        ("https://clones..example.org", "t"),
        ("https://clones.example.org", ""),
        ("https://clones.example.org", "two words"),
        ("https://clones.example.org", "secret\nHost: x"),
    ],
)
def test_what_names_no_service_is_refused_without_the_token(
    monkeypatch: pytest.MonkeyPatch, url: str, token: str
) -> None:
    monkeypatch.setenv("ZSNAPDB_URL", url)
    monkeypatch.setenv("ZSNAPDB_TOKEN", token)
    with pytest.raises(ConfigError) as caught:
        client_of(None)
    assert "secret" not in str(caught.value)
    assert "pass@" not in str(caught.value)


def test_the_command_says_what_is_missing() -> None:
    for words, variables, what, code in (
        ((), {}, "the URL of `zsnapdb serve` is missing", 3),
        ((), {"ZSNAPDB_URL": "https://clones.example.org"}, "the token is missing", 3),
        (("--ttl=soon",), {}, "is not a duration", 2),
        (("--tls-ca=/none",), {"ZSNAPDB_URL": "https://x", "ZSNAPDB_TOKEN": "x"}, "/none has no certificate", 3),
    ):
        done = zsnapdb("mcp", *words, **variables)
        assert (done.returncode, what in done.stderr) == (code, True), done.stderr


def test_a_service_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_protocol, "_FIRST_PAUSE", 0.0)
    with Client("http://127.0.0.1:1", "secret") as service:
        tools = Toolbox(service)
        with pytest.raises(CloneCommandError) as caught:
            tools.create("main")
        assert (caught.value.code, "secret" in str(caught.value)) == ("unreachable", False)
        (left,) = tools.end()
        assert left.startswith("clone mcp-")
        with pytest.raises(UsageError):
            tools.query("mine", "SELECT 1", None)


def test_what_a_service_says_steers_no_terminal(host: ServeHost, service: Client) -> None:
    host.let("fails", json.dumps({"error": {"code": "exists", "message": "a\x1b[2Jb", "hint": "c\x1bd"}}))
    said = call(Toolbox(service), "create_clone", instance="main")
    assert "\x1b" not in said


@pytest.mark.parametrize("how", ["eof", "sigterm"])
def test_over_stdio_clones_are_destroyed_at_the_end(host: ServeHost, url: str, how: str) -> None:
    environment = {**ENVIRONMENT, "ZSNAPDB_URL": url, "ZSNAPDB_TOKEN": host.token("ci:shop/web")}
    words = ["-m", "zsnapdb", "mcp", "--ephemeral"]

    async def makes_two() -> None:
        server = StdioServerParameters(command=sys.executable, args=words, env=environment)
        async with AgentClient(stdio_client(server)) as client:
            for arguments in ({"instance": "main"}, {"instance": "main", "name": "mine"}):
                answer = await client.call_tool("create_clone", arguments)
                assert not answer.is_error
            if how == "sigterm":
                children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
                (pid,) = [int(pid) for pid in children if b"\0mcp\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
                os.kill(pid, signal.SIGTERM)
                while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
                    await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(makes_two(), 90))
    assert [one.words[1] for one in host.calls()] == ["create", "create", "destroy", "destroy"]
    assert "--ttl=7200.000s" in host.calls()[0].words


def test_without_an_end_that_is_asked_for_clones_stay(host: ServeHost, url: str) -> None:
    environment = {**ENVIRONMENT, "ZSNAPDB_URL": url, "ZSNAPDB_TOKEN": host.token("ci:shop/web")}

    async def makes_one() -> None:
        server = StdioServerParameters(command=sys.executable, args=["-m", "zsnapdb", "mcp"], env=environment)
        async with AgentClient(stdio_client(server)) as client:
            await client.call_tool("create_clone", {"instance": "main"})

    asyncio.run(asyncio.wait_for(makes_one(), 90))
    assert [one.words[1] for one in host.calls()] == ["create"]


def test_standard_input_that_ends_at_once_ends_the_command(url: str, host: ServeHost) -> None:
    environment = {**ENVIRONMENT, "ZSNAPDB_URL": url, "ZSNAPDB_TOKEN": host.token("ci:shop/web")}
    for text in (b"", b"\xff\xfe\n", b"{}\n", b"[" * 100_000 + b"\n"):
        done = subprocess.run(
            [sys.executable, "-m", "zsnapdb", "mcp"], input=text, capture_output=True, env=environment, timeout=60
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
