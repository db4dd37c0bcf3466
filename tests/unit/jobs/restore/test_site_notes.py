"""A plan says once what a person may set on the restored datasets."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.support.planning_host import PlanningHost
from zsnapdb.jobs.restore import plan


def test_each_command_of_the_site_is_noted_once(host: PlanningHost) -> None:
    command = "zfs set a:b=1 tank/restored"
    planned = plan._with_notes_on_properties(replace(host.plan(), site_commands=(command,)), {})
    assert [command in note for note in planned.point.notes].count(True) == 1
