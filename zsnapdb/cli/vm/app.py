"""The commands of `zsnapdb vm`."""

from __future__ import annotations

import typer

from zsnapdb.cli.groups import CommandGroup
from zsnapdb.cli.vm import base, clone, life

app = typer.Typer(
    cls=CommandGroup, help="Clone virtual machines on zvols.", no_args_is_help=True, rich_markup_mode=None
)
_base = typer.Typer(cls=CommandGroup, help="Make, list and destroy bases.", no_args_is_help=True, rich_markup_mode=None)
_base.command("create")(base.create)
_base.command("list")(base.list_bases)
_base.command("destroy")(base.destroy_base)
app.add_typer(_base, name="base")
app.command("clone")(clone.clone)
app.command("list")(life.list_machines)
app.command("start")(life.start)
app.command("stop")(life.stop)
app.command("reset")(life.reset)
app.command("extend")(life.extend)
app.command("protect")(life.protect)
app.command("destroy")(life.destroy)
