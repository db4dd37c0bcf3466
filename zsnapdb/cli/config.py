"""`zsnapdb config …`."""

from __future__ import annotations

import typer

from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.options import AsJson, ConfigFile
from zsnapdb.cli.output import show

app = typer.Typer(cls=CommandGroup, help="Check the configuration file.", no_args_is_help=True, rich_markup_mode=None)


@app.command("check")
def check(config: ConfigFile = None, json: AsJson = False) -> None:
    """Check every key, unit, name and schedule of the configuration file, and that objectives and pools can be kept.

    `zsnapdb doctor` also checks servers and volumes.
    """
    from zsnapdb.agent.daemon import check_schedules
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone import pool_filling
    from zsnapdb.jobs.doctor.advice import silences
    from zsnapdb.report.setup import ConfigurationView

    settings = load(config)
    for name in settings.instance:
        pool_filling.refuse_pool(settings, Instance.of(settings, name))
        silences(settings, name)
    check_schedules(settings, THIS_HOST.now())
    show(ConfigurationView(settings), json)
