"""`zsnapdb clone create --count`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone.request import CloneRequest


def create_set(
    settings: Settings,
    instance: Instance,
    request: CloneRequest,
    count: int,
    topology: str,
    terminal: Terminal,
    *,
    plan: bool,
    json: bool,
) -> None:
    """Make a set of clones, or print the plan."""
    from zsnapdb.jobs.clone import topology as job
    from zsnapdb.report.clone import topology as report

    if plan:
        planned = job.plan_set(settings, instance, request, count, job.topology_of(topology))
        show(report.CloneSetPlanView(planned), json)
        return
    made = job.create_set(settings, instance, request, count, job.topology_of(topology))
    terminal.end()
    show(report.CloneSetView(made), json)
