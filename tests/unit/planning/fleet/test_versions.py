"""Control and hosts of different versions understand each other: each ignores what it does not know."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from zsnapdb.planning.fleet.jobs import FleetJob, JobAnswer, JobProgress, JobRequest, SlotsState

OLDEST: dict[type[BaseModel], dict[str, Any]] = {
    JobRequest: {
        "verb": "backup",
        "instance": "main",
        "run_id": "20261127T120000Z-0123abcd",
        "scheduled": "2026-11-27T12:00:00Z",
    },
    JobProgress: {"host": "db1"},
    JobAnswer: {"host": "db1", "exit_code": 0},
    FleetJob: {"verb": "backup", "instance": "main"},
    SlotsState: {"bucket": "store", "limit": 3},
}
"""The least that a message of each kind has had from the beginning."""
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)


@pytest.mark.parametrize("kind", OLDEST, ids=lambda kind: kind.__name__)
def test_a_message_of_the_oldest_version_is_understood(kind: type[BaseModel]) -> None:
    """A field that comes later has a default. One that is needed now may not be left out later."""
    assert {name for name, field in kind.model_fields.items() if field.is_required()} == set(OLDEST[kind])
    assert kind.model_validate(OLDEST[kind]).model_dump()["format"] == 1


@pytest.mark.parametrize("kind", OLDEST, ids=lambda kind: kind.__name__)
@given(st.dictionaries(st.text(min_size=1).map(lambda name: f"new_{name}"), VALUES, max_size=5))
def test_what_a_newer_version_says_beside_is_ignored(kind: type[BaseModel], more: dict[str, object]) -> None:
    assert kind.model_validate({**OLDEST[kind], **more}) == kind.model_validate(OLDEST[kind])


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [
        (JobRequest, {"verb": "clone"}),
        (FleetJob, {"verb": "clone"}),
        *((kind, {"format": 2}) for kind in OLDEST),
    ],
)
def test_what_means_something_else_is_refused(kind: type[BaseModel], unknown: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate({**OLDEST[kind], **unknown})
