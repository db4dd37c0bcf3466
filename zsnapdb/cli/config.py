"""`zsnapdb config …`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile

app = typer.Typer(help="The configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command("check")
def check(
    instance: Annotated[str | None, typer.Option("--instance", help="Only this instance.", show_default="all")] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Check the configuration against the datasets, the servers and the repositories it names. Touches nothing."""
    from zsnapdb.config import load
    from zsnapdb.jobs import check as job
    from zsnapdb.report import json as as_json
    from zsnapdb.report import text as as_text

    found = job.check(load(config), instance)
    print(as_json.findings(found) if json else as_text.findings(found))
    errors = [finding.error for finding in found if finding.error is not None]
    if errors:
        raise typer.Exit(errors[0].exit_code)
