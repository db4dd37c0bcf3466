"""`zsnapdb acknowledge-removed`, and its old name `zsnapdb forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly
from zsnapdb.cli.output import renamed, show


def acknowledge_removed(
    instance: NamedInstance,
    backups: Annotated[
        list[str] | None,
        typer.Argument(metavar="BACKUP...", help="Backup ids. Without any: all that are missing.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Stop missing backups that were removed from the repository on purpose.

    This host stored them, and another host or a person removed them. The next prune may destroy their local snapshots.
    """
    from zsnapdb.jobs.repository import forget as job
    from zsnapdb.report.repository.forget import ForgetView

    _, chosen = of_instance(config, instance)
    names = tuple(backups or ())
    show(ForgetView(job.plan_forget(chosen, names) if plan else job.forget(chosen, names), is_planned=plan), json)


def forget(
    instance: NamedInstance,
    backups: Annotated[
        list[str] | None,
        typer.Argument(metavar="BACKUP...", help="Backup ids. Without any: all that are missing.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Stop missing backups: the old name of `zsnapdb acknowledge-removed`."""
    renamed("forget", "acknowledge-removed")
    acknowledge_removed(instance, backups, config, plan, json)
