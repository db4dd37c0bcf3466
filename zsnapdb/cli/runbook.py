"""`zsnapdb runbook`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance
from zsnapdb.cli.output import show


def runbook(
    instance: NamedInstance,
    to: Annotated[
        str, typer.Option("--to", metavar="POINT", help="The point to restore, in the form of `zsnapdb restore --to`.")
    ] = "latest",
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="DATASET", help="The new dataset for the restored volumes.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Without --target: restore to POOL/zsnapdb/restored/NAME.",
            show_default="INSTANCE",
        ),
    ] = None,
    handover: Annotated[
        str,
        typer.Option(
            "--handover", metavar="HOW", help="How to hand over the restored server: stopped, run, promote, replica."
        ),
    ] = "run",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="NUMBER",
            help="With run and replica: the port of the restored server.",
            show_default="a free port of the range for clones",
        ),
    ] = None,
    server_id: Annotated[
        int | None,
        typer.Option(
            "--server-id",
            metavar="NUMBER",
            help="With run and replica: the server_id of the restored server.",
            show_default="random",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="HOST:PORT", help="With replica: the replication source.", show_default=False),
    ] = None,
    source_user: Annotated[
        str, typer.Option("--source-user", metavar="USER", help="With replica: the replication account on the source.")
    ] = "replica",
    source_password_file: Annotated[
        Path | None,
        typer.Option(
            "--source-password-file",
            metavar="FILE",
            help="With replica: a file with the password of that account.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORM", help="The output format: md or html.")] = "md",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print a restore as numbered steps for a person.

    The steps are those that `zsnapdb restore` would execute now.
    Each step has its commands, checks, expected duration, and what to do if it fails.
    """
    from zsnapdb.cli.restore import handover_of
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.restore import runbook as job
    from zsnapdb.jobs.restore.run import RestoreRequest
    from zsnapdb.report.restore import runbook as report

    if form not in ("md", "html"):
        raise typer.BadParameter(f"invalid --format {form!r}; choose md or html")
    settings = load(config)
    request = RestoreRequest(
        to, target, name, handover_of(handover, port, server_id, source, source_user, source_password_file)
    )
    book = job.make(settings, Instance.of(settings, instance), request, config)
    show(report.RunbookView(book, as_html=form == "html"), json)
