"""`zsnapdb clone create --count`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zsnapdb.config import Settings
    from zsnapdb.jobs.clone.create import CloneRequest
    from zsnapdb.jobs.instance import Instance


def create_set(
    settings: Settings, instance: Instance, wish: CloneRequest, count: int, topology: str, *, plan: bool, json: bool
) -> None:
    """Make a set of clones, or print what that would do."""
    from zsnapdb.cli.progress import ProgressLine
    from zsnapdb.jobs.clone import topology as job
    from zsnapdb.report.clone import topology as report

    if plan:
        planned = job.plan_set(settings, instance, wish, count, job.topology_of(topology))
        print(report.plan_json(planned) if json else report.plan(planned))
        return
    progress = ProgressLine()
    made = job.create_set(settings, instance, wish, count, job.topology_of(topology), progress, progress.tell)
    progress.end()
    print(report.clone_set_json(made) if json else report.clone_set(made))
