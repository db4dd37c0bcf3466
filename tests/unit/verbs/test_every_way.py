"""What may be asked of a new clone can be asked on every way: a field that one of them drops would do nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

import click
import pytest
from mcp.client.client import Client as AgentClient
from pydantic import BaseModel
from typer.main import get_command

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.cli.app import app
from zsnapdb.client.api_protocol import CloneOptions, given_options
from zsnapdb.mcp.server import server_of
from zsnapdb.mcp.tools import Toolbox
from zsnapdb.serve import helper_request_handler
from zsnapdb.serve.helper_request_handler import CloneTerms
from zsnapdb.verbs.requests import COMMANDS, SERVED, VERBS, DelegatedCommand, NewClone, RoleVerb

VALUES = {
    "instance": "main",
    "name": "mine",
    "at": "2h",
    "source": "latest",
    "ttl": "4h",
    "profile": "tiny",
    "mask": True,
    "heartbeat": "30s",
    "fresh": True,
}
"""A value of each field that is not its default."""
ALIASES = {name: field.alias or name for name, field in NewClone.model_fields.items()}
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("mcp", "heartbeat"): "the tools destroy what they made when their process ends, and no agent beats",
    ("page", "heartbeat"): "a person who has a page open holds nothing",
}
"""Where a field need not be, by way and field, and why."""


def of_command_line() -> set[str]:
    root: Any = get_command(app)
    group = root.get_command(click.Context(root), "clone")
    create = group.get_command(click.Context(group), "create")
    return {word.removeprefix("--") for one in create.params for word in (*one.opts, one.name)}


def of_command(command: DelegatedCommand) -> set[str]:
    return {
        *(word.strip("[]").lower() for word in command.words),
        *(option.removeprefix("--") for option in command.accepted),
    }


def of_clients() -> set[str]:
    # Both make a clone of an instance and, if one is given, a name.
    return {"instance", "name", *get_type_hints(CloneOptions)}


def of_tool() -> set[str]:
    async def fields() -> set[str]:
        async with AgentClient(server_of(Toolbox(None))) as agent:  # type: ignore[arg-type]
            tools = (await agent.list_tools()).tools
            return set(next(one for one in tools if one.name == "create_clone").input_schema["properties"])

    return asyncio.run(fields())


def of_page() -> set[str]:
    text = (CHECKOUT / "zsnapdb/serve/templates/new_clone.html").read_text()
    return set(re.findall(r'name="([a-z]+)"', text))


WAYS: Mapping[str, Callable[[], set[str]]] = {
    "command line": of_command_line,
    "zsnapdb-clone": lambda: of_command(COMMANDS["create"]),
    "helper": lambda: of_command(SERVED["create"]),
    "clients": of_clients,
    "mcp": of_tool,
    "page": of_page,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_field_is_on_every_way_or_is_an_exception_with_a_reason(way: str) -> None:
    there = WAYS[way]()
    missing = {name for name, alias in ALIASES.items() if not {name, alias} & there}
    assert missing == {field for where, field in EXCEPTIONS if where == way}


@pytest.mark.parametrize("field", NewClone.model_fields)
def test_each_field_changes_the_command_that_is_run(field: str) -> None:
    alias = ALIASES[field]
    wanted = NewClone.model_validate({"instance": "main", alias: VALUES[field]})
    words = helper_request_handler.create_words(wanted, CloneTerms(wanted.name or "made", 60.0, wanted.mask), "ci:x")
    if field == "ttl":
        # The helper decides how long it is.
        assert "--ttl=60.000s" in words
    else:
        assert any(VALUES[field] in (word, word.partition("=")[2]) or word == f"--{alias}" for word in words)


def test_each_option_of_the_clients_reaches_the_command() -> None:
    options = CloneOptions(at="2h", source="latest", ttl="4h", profile="tiny", mask=True, heartbeat=30.0, fresh=True)
    assert set(options) == set(get_type_hints(CloneOptions))
    given = given_options(options)
    assert given == {ALIASES[name]: VALUES[name] for name in options}
    assert set(given) <= of_command(COMMANDS["create"])


def names_of(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from names_of(field.annotation)
        elif name not in ("kind", "key"):
            yield field.alias or name


@pytest.mark.parametrize("verb", [one for one in VERBS if one.command], ids=lambda one: one.__name__)
def test_each_field_of_a_verb_is_a_word_or_an_option_of_its_command(verb: type[RoleVerb]) -> None:
    assert {*names_of(verb), *verb.fixed} <= of_command(SERVED[verb.command])


def test_the_command_of_each_verb_is_a_command_of_zsnapdb() -> None:
    root: Any = get_command(app)
    for command in SERVED.values():
        found = root
        for word in command.runs.split():
            found = found.get_command(click.Context(found), word)
        assert {word for one in found.params for word in one.opts} >= set(command.accepted)
