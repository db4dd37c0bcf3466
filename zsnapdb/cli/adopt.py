"""`zsnapdb adopt`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.base.foreign_text import printed
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly, RepositoryName
from zsnapdb.cli.output import renamed, show


def adopt(
    instance: NamedInstance,
    backups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BACKUP...", help="Backup ids. Without any: all without an objection.", show_default=False
        ),
    ] = None,
    repository: RepositoryName = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of the backups.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Adopt without a question.")] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Know backups that this host did not store, after it was rebuilt or took over.

    It shows what is known of each foreign backup. An adopted backup counts for the retention policy and may be removed.
    """
    from zsnapdb.jobs.repository import adopt as job
    from zsnapdb.report.repository.list import AdoptView

    _, chosen = of_instance(config, instance, repository)
    planned = job.plan(chosen, tuple(backups or ()), is_deep=deep)
    if plan:
        show(AdoptView(planned, is_planned=True), json)
        return
    if not planned.is_empty:
        if not yes:
            _ask(AdoptView(planned, is_planned=True).text())
        job.adopt(chosen, planned)
    show(AdoptView(planned), json)


def _ask(text: str) -> None:
    """Show the plan and ask. UsageError where nobody can answer, or the answer is no: then nothing was changed."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("adopt asks before it records anything, and nobody can answer here", hint="add --yes")
    for line in text.splitlines():
        print(printed(line), file=sys.stderr)
    if not typer.confirm("Adopt these?", default=False, err=True):
        raise UsageError("nothing was changed", hint="the same command asks again")


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
    from zsnapdb.jobs.repository import adopt as job
    from zsnapdb.report.repository.list import ForgetView

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
