"""`zsnapdb runbook`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance
from zsnapdb.cli.output import show


def runbook(
    instance: NamedInstance,
    to: Annotated[str, typer.Option("--to", metavar="POINT", help="As `zsnapdb restore` takes it.")] = "latest",
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="DATASET", help="A new dataset for the restored volumes.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="NAME", help="Without --target: go to POOL/zsnapdb/restored/NAME.", show_default="INSTANCE"
        ),
    ] = None,
    handover: Annotated[
        str, typer.Option("--handover", metavar="HOW", help="What becomes of it: stopped, run, promote, replica.")
    ] = "run",
    port: Annotated[
        int | None, typer.Option("--port", help="Its port, with run and replica.", show_default="a free one of clones")
    ] = None,
    server_id: Annotated[
        int | None,
        typer.Option("--server-id", help="Its server_id, with run and replica.", show_default="a random one"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="HOST:PORT", help="With replica: what to replicate from.", show_default=False),
    ] = None,
    source_user: Annotated[str, typer.Option("--source-user", help="With replica: the account there.")] = "replica",
    source_password_file: Annotated[
        Path | None, typer.Option("--source-password-file", help="With replica: its password.", show_default=False)
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORM", help="md or html.")] = "md",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print the restore that `zsnapdb restore` would execute now as numbered steps for a person: commands, checks, durations, what to do if one fails."""
    from zsnapdb.cli.restore import handover_of
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.restore import runbook as job
    from zsnapdb.jobs.restore.run import RestoreRequest
    from zsnapdb.report.restore import runbook as report

    if form not in ("md", "html"):
        raise typer.BadParameter(f"--format {form}: md or html")
    settings = load(config)
    request = RestoreRequest(
        to, target, name, handover_of(handover, port, server_id, source, source_user, source_password_file)
    )
    book = job.make(settings, Instance.of(settings, instance), request, config)
    show(report.RunbookView(book, as_html=form == "html"), json)
