"""`zsnapdb config …`."""

from __future__ import annotations

import typer

from zsnapdb.cli.options import AsJson, ConfigFile

app = typer.Typer(help="The configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command("check")
def check(config: ConfigFile = None, json: AsJson = False) -> None:
    """Check the configuration file alone: every key, unit and name. `zsnapdb doctor` checks it against the world."""
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report import document as as_json
    from zsnapdb.report import text as as_text

    settings = load(config)
    for name in settings.instance:
        Instance.of(settings, name)
    print(as_json.configuration(settings) if json else as_text.configuration(settings))
