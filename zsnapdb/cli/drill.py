"""`zsnapdb drill` and `zsnapdb drills`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, NamedInstance, PlanOnly
from zsnapdb.cli.output import show


def drill(
    instance: NamedInstance,
    to: Annotated[
        str, typer.Option("--to", metavar="POINT", help="As `zsnapdb restore` takes it, or random: any backup.")
    ] = "latest",
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="What decides the random backup and the sample; the same seed repeats them.",
            show_default="another each time",
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Check every page and every table, not a sample.")] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Restore a backup into scratch datasets, start it in isolation, check it, keep the evidence, throw the copy away.

    Ends 0: passed, 11: a check failed, 7: something is damaged.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.trial import drill as job
    from zsnapdb.report.trial import drill as report

    settings = load(config)
    terminal = Terminal()
    chosen = Instance.of(settings, instance, terminal)
    if plan:
        planned = job.plan(settings, chosen, chosen.open_repository(), to, seed=seed, whole=whole)
        show(report.DrillPlanView(planned), json)
        return
    done = job.drill(settings, chosen, to, seed=seed, whole=whole)
    terminal.end()
    show(report.DrillView(done), json)
    raise typer.Exit(job.exit_code(done.evidence))


def drills(
    instance: InstanceName = None,
    drill_id: Annotated[
        str | None,
        typer.Argument(metavar="[DRILL]", help="One drill's id, or latest: show it whole.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """List the drills of an instance, oldest first; or show one."""
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.trial import drill as job
    from zsnapdb.report.trial import drill as report

    chosen = Instance.of(load(config), instance)
    if drill_id is not None:
        show(report.EvidenceView(job.find(chosen, drill_id)), json)
        return
    show(report.DrillsView(job.history(chosen, 1000)), json)
