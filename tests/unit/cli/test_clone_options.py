"""Every option of `zsnapdb clone create` changes the request for the clone, or has a reason not to."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsnapdb.cli.clone import create
from zsnapdb.jobs.clone import request as requests
from zsnapdb.jobs.clone.request import CloneRequest

OTHER: dict[str, Any] = {
    "name": "mine",
    "source": "20261120T100000Z-0001",
    "at": "2026-11-20T10:00:00Z",
    "ttl": "2h",
    "heartbeat": "1m",
    "quota": "5GiB",
    "owner": "ci:shop/web",
    "profile": create.ProfileOption.TINY,
    "bind": "127.0.0.2",
    "mask": True,
    "admin": True,
    "no_start": True,
    "fresh": True,
    "accepts_older": True,
    "history": "20261120T100000Z-0001",
    "binary": Path("/opt/mysqld"),
}
"""A value of each option that is not its default."""
NOT_IN_REQUEST = {
    "instance": "it chooses the instance",
    "config": "it chooses the settings",
    "count": "it repeats the request",
    "topology": "it connects the clones of a set",
    "once": "it names the run",
    "plan": "it shows the plan only",
    "json": "it is the form of the answer",
}
NOT_OF_CALLER = {
    "point": "the plan of `at`, which a job makes",
    "requested": "the first source, if a job replaced it",
    "is_ephemeral": "of clones that a job makes for itself",
    "waits": "of clones of the pool",
    "follows": "of the clones of a set",
}


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the command with options and returns its request."""
    seen: list[CloneRequest] = []
    monkeypatch.setattr(create, "instance_context", lambda *_, **__: (SimpleNamespace(), SimpleNamespace()))
    monkeypatch.setattr(create, "_check_options", lambda *_: None)
    monkeypatch.setattr(create, "_owner", lambda: "me")
    monkeypatch.setattr(create, "_carry_out", lambda _settings, _instance, request, *_, **__: seen.append(request))

    def run(**options: Any) -> CloneRequest:
        create.create(**options)
        return seen[-1]

    return run


@pytest.mark.parametrize("option", OTHER)
def test_each_option_reaches_the_request(requested: Any, option: str) -> None:
    usual, other = vars(requested()), vars(requested(**{option: OTHER[option]}))
    assert [name for name in usual if usual[name] != other[name]], option


def test_each_option_and_each_field_is_known_here(requested: Any) -> None:
    assert set(inspect.signature(create.create).parameters) == OTHER.keys() | NOT_IN_REQUEST.keys()
    usual, changed = vars(requested()), set[str]()
    for option, value in OTHER.items():
        changed |= {name for name, other in vars(requested(**{option: value})).items() if other != usual[name]}
    assert set(vars(requests.CloneRequest("me"))) == changed | NOT_OF_CALLER.keys()


NOT_OF_POOL = {
    "history": "a request with a point gets no clone of the pool, and a history needs a point",
    "accepts_older": "a clone of the pool has a state that was accepted when it was created",
}
"""Fields that a hand-out from the pool does not read."""


def fields_read(*files: str) -> set[str]:
    """Return the attributes of requests that these modules of jobs/clone read."""
    folder = Path(inspect.getfile(requests)).parent
    return {
        node.attr
        for file in files
        for node in ast.walk(ast.parse((folder / file).read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("request", "asked")
    }


def test_every_field_of_the_request_is_used_by_a_new_clone_and_by_a_hand_out() -> None:
    fields = set(vars(requests.CloneRequest("me")))
    assert fields <= fields_read("create.py", "create_plan.py", "pool.py", "topology.py")
    assert fields - fields_read("pool.py") == NOT_OF_POOL.keys()
