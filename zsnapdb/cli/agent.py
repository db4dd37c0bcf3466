"""`zsnapdb agent`: the jobs of this host and their schedules."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.command_context import configuration
from zsnapdb.cli.main_process import stop_on_signals
from zsnapdb.cli.options import AsJson, ConfigFile, argument, option
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from pathlib import Path


class HangUp:
    """A request to reload the configuration, sent by SIGHUP."""

    def __init__(self) -> None:
        self._was_sent = False

    def send(self) -> None:
        self._was_sent = True

    def take(self) -> bool:
        """Return whether a request arrived since the last call."""
        was_sent, self._was_sent = self._was_sent, False
        return was_sent


def _environment(config: Path | None) -> dict[str, str]:
    """Return the environment for jobs. It makes jobs use the same configuration file as this command."""
    import os

    return {**os.environ, "ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else dict(os.environ)


def agent(context: typer.Context, config: ConfigFile = None) -> None:
    """Run the agent's jobs of this configuration until SIGTERM. SIGHUP reloads the configuration.

    The sections [instance.NAME.agent] and [agent] define the jobs. Each job is a separate process, and at most one job
    of an instance runs at a time. If runs were missed, one run makes up for all of them. All commands also work without
    the agent, from cron or systemd timers.
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    from zsnapdb.agent.daemon import ConfigurationFile, serve
    from zsnapdb.agent.job_starter import JobStarter
    from zsnapdb.cli import log_writer
    from zsnapdb.config.settings import DEFAULT_PATH, load
    from zsnapdb.jobs.base.host import THIS_HOST

    stop, reload = stop_on_signals((signal.SIGTERM, signal.SIGINT)), HangUp()

    def hang_up(*_: object) -> None:
        reload.send()
        stop.wake()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)
    # SIGCHLD wakes the agent, so that it records a job's result as soon as the job ends.
    signal.signal(signal.SIGCHLD, lambda *_: stop.wake())
    file = ConfigurationFile(config or DEFAULT_PATH, lambda: load(config))
    serve(file, JobStarter(_environment(config)), THIS_HOST, stop, reload, log_writer.info)


def agent_status(context: typer.Context, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show the last result and the next run of each job, and the pauses. Works without a running agent.

    It also reports whether a running agent still uses an older configuration. Exit code 1: neither an agent nor another
    scheduler runs the jobs.
    """
    from zsnapdb.agent.web import overview
    from zsnapdb.config.settings import DEFAULT_PATH
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report.agent import AgentView

    file = config or context.obj
    seen = overview(configuration(file), file or DEFAULT_PATH, THIS_HOST)
    show(AgentView(seen), json)
    if seen.is_lacking:
        raise typer.Exit(1)


def agent_run(
    context: typer.Context,
    job: Annotated[str, argument("JOB", "Configured job, such as backup or deep-verify.")],
    instance: Annotated[
        str | None,
        argument("INSTANCE", "Instance of the job, if several have it.", autocompletion=completion.instances),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a job of the agent now, and store its result like that of a scheduled run. Exit with the job's exit code."""
    from functools import partial

    from zsnapdb.agent.children import start
    from zsnapdb.agent.schedule import run_now
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report.agent import AgentRunView

    chosen = config or context.obj
    starter = partial(start, environment=_environment(chosen))
    ran = run_now(configuration(chosen), job, instance, starter, THIS_HOST)
    show(AgentRunView(ran), json)
    code = ran.exit_code
    if code:
        raise typer.Exit(code if code > 0 else 128 - code)


def agent_pause(
    context: typer.Context,
    instance: Annotated[str, argument("INSTANCE", "Configured instance.", autocompletion=completion.instances)],
    length: Annotated[str, option("--for", "DURATION", "Length of the pause, for example 2h; 0s ends it.")],
    reason: Annotated[str, option("--reason", "TEXT", "Reason, which `agent status` shows.")],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Pause the jobs of an instance. Running jobs continue. Objectives are still checked."""
    from zsnapdb.agent.records import pause
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report.agent import PauseView

    until = pause(configuration(config or context.obj), instance, parse_duration(length), reason, THIS_HOST)
    show(PauseView(instance, until), json)
