"""Each step that a plan can have is carried out by one handler."""

from __future__ import annotations

from typing import get_args

import pytest

from zsnapdb.jobs.clone import source_fetch
from zsnapdb.jobs.restore import machine_restore, server_restore
from zsnapdb.jobs.steps.journal import Handlers, run_steps
from zsnapdb.planning.restore.steps import MachineStep, Step


@pytest.mark.parametrize(
    ("union", "handlers"), [(Step, server_restore.HANDLERS), (MachineStep, machine_restore.HANDLERS)]
)
def test_every_step_has_a_handler(union: object, handlers: Handlers) -> None:
    assert set(handlers) == set(get_args(union))


def test_a_step_without_a_handler_stops_a_plan_before_anything_is_done() -> None:
    done: list[object] = []
    with pytest.raises(KeyError):
        run_steps(None, ["known", 7], {str: lambda work, step: done.append(step)})
    assert done == []


def test_what_a_clone_is_fetched_by_are_steps_of_a_restore() -> None:
    assert set(source_fetch.VOLUME_STEPS) | set(source_fetch.SERVER_STEPS) <= set(get_args(Step))
    assert not set(source_fetch.VOLUME_STEPS) & set(source_fetch.SERVER_STEPS)
