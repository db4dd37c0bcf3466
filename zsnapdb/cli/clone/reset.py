"""`zsnapdb clone reset`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli import completion
from zsnapdb.cli.clone.options import SOURCE_HELP, CloneName, clone_guids
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import on_host
from zsnapdb.cli.options import AcceptOlder, AsJson, ConfigFile, Once, PlanOnly, ServerBinary
from zsnapdb.cli.output import show


def reset(
    name: CloneName,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help=SOURCE_HELP,
            autocompletion=completion.sources,
            show_default="what the clone was created from",
        ),
    ] = None,
    replaces: Annotated[
        bool, typer.Option("--replace", help="Replace the data, also where its changes can be undone.")
    ] = False,
    accepts_older: AcceptOlder = False,
    once: Once = None,
    binary: ServerBinary = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Give a clone the data again that it was created from, or other data. Port, credentials and lease stay.

    If only some rows were changed since, and that is certain, they are undone; else the data is replaced.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.jobs.clone import catalogue
    from zsnapdb.jobs.clone import reset as job
    from zsnapdb.report.clone import change as report

    settings, host = on_host(config)
    settings = catalogue.with_binary(settings, host, name, binary)
    if plan:
        planned = job.reset_plan(settings, host, name, source, accepts_older=accepts_older, replaces=replaces)
        show(report.ResetPlanView(planned), json)
        return
    terminal = Terminal()

    def make() -> CommandAnswer:
        done = job.reset(settings, host, name, source, terminal, accepts_older=accepts_older, replaces=replaces)
        return CommandAnswer(report.ResetView(done))

    def made() -> CommandAnswer | None:
        known = job.done_by_run(settings, host, name)
        return CommandAnswer(report.ResetView(known)) if known is not None else None

    about = f"{name} to {source}" if source is not None else name
    command = Repeatable(
        "clone reset", about, aim=lambda: clone_guids(settings, host, name), made=made, tell=terminal.tell
    )
    show_once(host, once, command, make, json)
