"""An answer to a subject names nothing of others: every verb of every role is sent to a host full of other names.

The verbs are those of the registry: a new one is tried without a change here.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.unit.support.serve_host import ServeHost
from zsnapdb.base import run_context
from zsnapdb.serve.clone_documents import OwnedCommit
from zsnapdb.serve.helper_messages import FailureAnswer, ResultAnswer
from zsnapdb.serve.roles import Role
from zsnapdb.verbs.requests import VERBS, CreateCloneVerb, ListInstancesVerb, NewClone, RoleVerb

OTHER = "user:boss@rival.example"
PLANTED = {
    "merger-with-acme", "acme-secret-branch", "vault/acme", "tank/clones/merger-with-acme", "23999", "layoffs",
    "20260101t000000z-beef", "acme", OTHER, "rival", "pid 4711", "prepared-for-acme", "10.99.99.99",
}  # fmt: skip
"""Clones, branches, datasets, ports, labels, commits, pools, subjects and processes of others."""
LIMITED = (Role.VIEWER, Role.DEVELOPER)
SAYS = (
    "clone merger-with-acme of user:boss@rival.example lies at vault/acme on port 23999; prepared-for-acme waits for"
    " pid 4711"
)
STRINGS = (
    "merger-with-acme",
    "main",
    "1h",
    run_context.new_run_id(),
    "before",
    "a" * 40,
    "20260101T000000Z-beef",
    "red",
)
"""Candidates for a field: the first that its pattern takes is sent."""


def kinds(of: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a union of verbs."""
    if isinstance(of, types.UnionType) or typing.get_origin(of) in (typing.Union, Annotated):
        for one in typing.get_args(of):
            yield from kinds(one)
    elif isinstance(of, type) and issubclass(of, BaseModel):
        yield of


def filled(model: type[BaseModel], strings: Sequence[str] = STRINGS) -> dict[str, Any]:
    """Return values for every field that the model must have, and for names and sources that it may have."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if typing.get_origin(kind) is Literal or not (field.is_required() or name in ("name", "source")):
            continue
        values[field.alias or name] = value(kind, field.metadata, strings)
    return values


def asked_for(verb: type[BaseModel], values: dict[str, Any]) -> RoleVerb:
    made = verb.model_validate(values)
    assert isinstance(made, RoleVerb)
    return made


def value(kind: Any, metadata: Sequence[Any], strings: Sequence[str]) -> Any:
    nested = next(iter(kinds(kind)), None)
    if nested is not None:
        return filled(nested, strings)
    adapter = TypeAdapter(Annotated[kind, *metadata]) if metadata else TypeAdapter(kind)
    for candidate in (*strings, 1, True, None):
        try:
            adapter.validate_python(candidate)
        except ValidationError:
            continue
        return candidate
    raise AssertionError(f"no candidate for {kind}: add one to STRINGS")


@pytest.fixture
def host(tmp_path: Path) -> ServeHost:
    made = ServeHost(tmp_path, patience=20.0)
    made.clones(
        {"name": "mine", "owner": "ci:shop/web"},
        {
            "name": "merger-with-acme", "id": "layoffs", "owner": OTHER, "dataset": "vault/acme", "port": 23999,
            "bind_address": "10.99.99.99", "branch": "acme-secret-branch", "set": "acme",
        },
    )  # fmt: skip
    made.commits.append(OwnedCommit("20260101T000000Z-beef", OTHER))
    return made


def text_of(answer: object) -> str:
    assert isinstance(answer, FailureAnswer | ResultAnswer), answer
    return answer.model_dump_json().lower()


def leaked(answer: object, asked: Any) -> set[str]:
    """Return the planted names in an answer that were not in the question."""
    said, question = text_of(answer), json.dumps(asked).lower()
    return {name for name in PLANTED if name in said and name not in question}


@pytest.mark.parametrize("role", LIMITED)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_no_verb_names_anything_of_others(host: ServeHost, verb: type[BaseModel], role: Role) -> None:
    own = tuple("mine" if one == "merger-with-acme" else one for one in STRINGS)
    told = {"error": {"code": "preflight", "message": SAYS, "hint": f"existing: {SAYS}"}}
    token = host.token("ci:shop/web", role)
    with host.helper():
        for strings in (STRINGS, own):
            asked = filled(verb, strings)
            for undeclared in ("", "yes"):
                host.let("undeclared", undeclared)
                host.let("fails", json.dumps(told) if undeclared else "")
                assert leaked(host.ask(token, asked_for(verb, asked)), asked) == set()


@pytest.mark.parametrize("role", LIMITED)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_a_clone_of_others_is_as_one_that_is_not_there(host: ServeHost, verb: type[BaseModel], role: Role) -> None:
    """The same words, code and exit code, after the same commands."""
    if "name" not in verb.model_fields or filled(verb)["name"] != "merger-with-acme":
        return
    token = host.token("ci:shop/web", role)
    with host.helper():
        seen = []
        for name in ("merger-with-acme", "layoffs", "nothing-of-name"):
            before = len(host.calls())
            asked = {**filled(verb), "name": name}
            answer = host.ask(token, asked_for(verb, asked))
            seen.append((text_of(answer).replace(name, "NAME"), len(host.calls()) - before))
    assert seen[0] == seen[1] == seen[2]


def test_an_error_that_says_what_it_names_is_told(host: ServeHost) -> None:
    host.let("fails", json.dumps({"error": {"code": "exists", "message": "the name is taken", "hint": "another"}}))
    asked = CreateCloneVerb(wanted=NewClone(instance="main", name="new"))
    with host.helper():
        known = host.refused(host.token("ci:shop/web"), asked)
        host.let("undeclared", "yes")
        hidden = host.refused(host.token("ci:shop/web"), asked)
        whole = host.refused(host.token("user:root@example.org", Role.OPERATOR), asked)
    assert (known.message, whole.message) == ("the name is taken", "the name is taken")
    assert (hidden.code, hidden.exit_code, "taken" in hidden.message) == ("exists", 7, False)


def test_a_configuration_that_is_broken_names_nothing(host: ServeHost) -> None:
    host.more = 'token_of_acme = "vault/acme"'
    with host.helper():
        assert leaked(host.refused(host.token("ci:shop/web"), ListInstancesVerb()), {}) == set()
