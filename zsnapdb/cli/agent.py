"""`zsnapdb agent`: the schedules of this host."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.exit_codes import stop_on_signals
from zsnapdb.cli.opened import configuration
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from pathlib import Path


class HangUp:
    """A request to read the configuration again, by SIGHUP."""

    def __init__(self) -> None:
        self._was_sent = False

    def send(self) -> None:
        """Make the request."""
        self._was_sent = True

    def take(self) -> bool:
        """Return whether there was a request since the last call."""
        was_sent, self._was_sent = self._was_sent, False
        return was_sent


def _tell(text: str) -> None:
    from zsnapdb.cli import log
    from zsnapdb.report.log_lines import LogLevel

    log.write(LogLevel.INFO, text)


def _environment(config: Path | None) -> dict[str, str]:
    """Return the environment of jobs with the configuration of this command."""
    import os

    return {**os.environ, "ZSNAPDB_CONFIG": str(config.absolute())} if config is not None else dict(os.environ)


def agent(context: typer.Context, config: ConfigFile = None) -> None:
    """Run the jobs that the configuration gives the agent, until SIGTERM. SIGHUP reads the configuration again.

    Jobs stand in [instance.NAME.agent] and [agent]. Each runs as a process of its own; of one instance no two at once.
    A run that was missed is made up for once. Everything also works without the agent, by cron or by timers of systemd.
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    from zsnapdb.agent.daemon import ConfigurationFile, serve
    from zsnapdb.agent.fork_server import JobStarter
    from zsnapdb.config.settings import DEFAULT_PATH, load
    from zsnapdb.jobs.base.host import THIS_HOST

    stop, reload = stop_on_signals((signal.SIGTERM, signal.SIGINT)), HangUp()

    def hang_up(*_: object) -> None:
        reload.send()
        stop.wake()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)
    # The result of a job is kept when it ends, not at the next turn.
    signal.signal(signal.SIGCHLD, lambda *_: stop.wake())
    file = ConfigurationFile(config or DEFAULT_PATH, lambda: load(config))
    serve(file, JobStarter(_environment(config)), THIS_HOST, stop, reload, _tell)


def agent_status(context: typer.Context, config: ConfigFile = None, json: AsJson = False) -> None:
    """Show the last result and the next run of each job, and the pauses. Works without a running agent too.

    A running agent that runs with another configuration than this file has now is named.
    """
    from zsnapdb.agent.web import overview
    from zsnapdb.config.settings import DEFAULT_PATH
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report.agent import AgentView

    file = config or context.obj
    show(AgentView(overview(configuration(file), file or DEFAULT_PATH, THIS_HOST)), json)


def agent_run(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A configured job, such as backup or deep-verify.")],
    instance: Annotated[
        str | None,
        typer.Argument(
            metavar="INSTANCE",
            help="Its instance, if several have it.",
            show_default=False,
            autocompletion=completion.instances,
        ),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Run a job of the agent now, and keep its result like that of a scheduled run. Ends with the job's exit code."""
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
    instance: Annotated[
        str, typer.Argument(metavar="INSTANCE", help="A configured instance.", autocompletion=completion.instances)
    ],
    length: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long, for example 2h; 0s ends a pause.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; `agent status` shows it.")],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Let no job of an instance begin for some time. Running jobs go on. Objectives are judged all the same."""
    from zsnapdb.agent.records import pause
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.report.agent import PauseView

    until = pause(configuration(config or context.obj), instance, parse_duration(length), reason, THIS_HOST)
    show(PauseView(instance, until), json)
