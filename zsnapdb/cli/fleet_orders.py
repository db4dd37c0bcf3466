"""`zsnapdb fleet apply`, `run`, `pause`, `resume`, `cancel` and `history`: what an operator asks of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli.fleet_engine import JobsFile, extra, tell
from zsnapdb.cli.options import AsJson, PlanOnly
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.planning.fleet.selection import JobFilter

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only these: instance=PATTERN, host=PATTERN, verb=PATTERN, bucket=PATTERN. May be repeated.",
        show_default=False,
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="All jobs of the fleet, in the place of --where.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the engine keeps it.")]


def _meant(where: list[str] | None, every: bool) -> list[JobFilter]:
    """Return the filters; none means the whole fleet. UsageError if neither is said, or both."""
    from zsnapdb.base.errors import UsageError
    from zsnapdb.planning.fleet.selection import JobFilter

    if bool(where) == every:
        raise UsageError(
            "--where and --all do not fit together" if every else "nothing says which jobs of the fleet are meant",
            hint="add --where, such as `--where instance=shop`, or --all for the whole fleet",
        )
    return [JobFilter.parse(text) for text in where or ()]


def apply(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The jobs of the fleet.",
            show_default="/etc/zsnapdb/fleet-jobs.toml",
        ),
    ] = None,
    waves: Annotated[
        int | None,
        typer.Option(
            "--waves", metavar="N", min=1, help="Only the first so many waves of `rollout`.", show_default="all"
        ),
    ] = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Make the engine's schedules and limits those of FILE, in the order of its rollout.

    What the file does not name any more is removed; what others made in the engine is left alone. A paused schedule
    stays paused. An engine that has lost everything gets everything back. Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import orders as report

    settings = load_jobs(file)
    with extra():
        from zsnapdb.fleet import orders
    if plan:
        show(report.FleetApplyPlanView(orders.plan(settings, waves)), json)
    else:
        show(report.FleetAppliedView(orders.apply(settings, waves, tell)), json)


def run(
    verb: Annotated[str, typer.Argument(metavar="VERB", help="backup, drill or verify.")],
    where: Where = None,
    every: Everything = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the ends. 1 if a run failed.")] = False,
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Begin a job now on every instance that --where means, or on --all, within the limits of buckets.

    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.base.errors import INTERNAL, UsageError
    from zsnapdb.config.engine import FleetVerb
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import orders as report

    if verb not in set(FleetVerb):
        raise UsageError(f"{verb!r} is nothing that a fleet does", hint=f"choose from: {', '.join(FleetVerb)}")
    filters = _meant(where, every)
    settings = load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    runs = orders.run(settings, FleetVerb(verb), filters, waits=wait)
    show(report.JobRunsView(runs), json)
    if any(one.is_bad for one in runs):
        raise typer.Exit(INTERNAL)


def pause(
    reason: Reason,
    where: Where = None,
    every: Everything = False,
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Let the schedules that --where means, or --all, begin nothing. Runs that are under way go on.

    A host whose agent has `fallback` begins its backups all the same: `zsnapdb agent pause` there holds them. Needs the
    extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import orders as report

    filters, settings = _meant(where, every), load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    show(report.FleetPausedView(orders.pause(settings, filters, reason)), json)


def resume(
    where: Where = None,
    every: Everything = False,
    reason: Reason = "",
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Let the schedules that --where means, or --all, begin their jobs again. What was missed is not made up for.

    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import orders as report

    filters, settings = _meant(where, every), load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    show(report.FleetResumedView(orders.resume(settings, filters, reason)), json)


def cancel(where: Where = None, every: Everything = False, jobs: JobsFile = None, json: AsJson = False) -> None:
    """Ask the runs that --where means, or --all, to end. Each host ends the command, which undoes what it began.

    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import orders as report

    filters, settings = _meant(where, every), load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    show(report.CancelledRunsView(orders.cancel(settings, filters)), json)


def history(
    where: Where = None,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, max=1000, help="At most so many runs.")] = 50,
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Show the newest runs of the fleet: when, where, and how each ended. Needs the extra zsnapdb[fleet]."""
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.planning.fleet.selection import JobFilter
    from zsnapdb.report.fleet import orders as report

    filters, settings = [JobFilter.parse(text) for text in where or ()], load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    show(report.FleetHistoryView(orders.history(settings, filters, most)), json)
