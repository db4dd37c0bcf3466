"""`zsnapdb clone commit`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName, clone_guids
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.options import AsJson, ConfigFile, Once, PlanOnly
from zsnapdb.cli.output import show


def commit(
    name: CloneName,
    message: Annotated[
        str, typer.Option("--message", "-m", help="A description of the data, shown with the commit.")
    ] = "",
    once: Once = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Snapshot a clone in its present state. The commit can be cloned like a backup."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import change as report

    settings = load(config)
    if plan:
        show(report.IntentionView(plans.commit(settings, THIS_HOST, name, message), "commit"), json)
        return

    def make() -> CommandAnswer:
        return CommandAnswer(report.CommittedView(lifecycle.commit(settings, THIS_HOST, name, message)))

    def made() -> CommandAnswer | None:
        from zsnapdb.jobs.clone import once as of_run

        known = of_run.committed(settings, THIS_HOST, name)
        return CommandAnswer(report.CommittedView(known)) if known is not None else None

    command = Repeatable("clone commit", name, aim=lambda: clone_guids(settings, THIS_HOST, name), made=made)
    show_once(THIS_HOST, once, command, make, json)
