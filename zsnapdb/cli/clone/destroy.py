"""`zsnapdb clone destroy`."""

from __future__ import annotations

from zsnapdb.cli.clone.options import CloneName, clone_guids
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.options import AsJson, ConfigFile, Once, PlanOnly, WithForeignSnapshots
from zsnapdb.cli.output import show


def destroy(
    name: CloneName,
    with_foreign_snapshots: WithForeignSnapshots = False,
    once: Once = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Stop the server of a clone, or of each clone of a set, and destroy its datasets and commits.

    A commit that another clone was made from becomes a commit of that clone. A clone that does not exist is not an
    error. With --once no clone that has the name since goes.
    """
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import destroy as job
    from zsnapdb.jobs.copies.sweeping import GoesToo
    from zsnapdb.report.clone import destroy as report

    settings = load(config)
    also = [GoesToo.FOREIGN_SNAPSHOTS] if with_foreign_snapshots else []
    if plan:
        show(report.DestroyPlanView(job.plan(settings, THIS_HOST, name, also), name), json)
        return

    def make() -> CommandAnswer:
        return CommandAnswer(report.DestroyedView(job.destroy(settings, THIS_HOST, name, also), name))

    command = Repeatable(
        "clone destroy",
        name,
        aim=lambda: clone_guids(settings, THIS_HOST, name),
        gone=lambda: CommandAnswer(report.DestroyedView((), name)),
    )
    show_once(THIS_HOST, once, command, make, json)
