"""The root of the command line. `ending.py` turns exceptions into exit codes."""

from __future__ import annotations

import sys

import typer

from zsnapdb import __version__
from zsnapdb.cli import (
    backup,
    binlog,
    config,
    copy,
    doctor,
    drill,
    ending,
    example,
    forget,
    init,
    inventory,
    key,
    pin,
    prune,
    query,
    rescue,
    restore,
    runbook,
    status,
    verify,
)
from zsnapdb.cli.clone import app as clone_app
from zsnapdb.cli.clone import reap

app = typer.Typer(
    name="zsnapdb",
    cls=ending.Root,
    help="Backs up, restores and clones MySQL and MariaDB servers whose files live on ZFS.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.command("init")(init.init)
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("list")(inventory.list_backups)
app.command("show")(inventory.show_backup)
app.command("restore")(restore.restore)
app.command("query")(query.query)
app.command("diff")(query.diff)
app.command("verify")(verify.verify)
app.command("copy")(copy.copy)
app.command("prune")(prune.prune)
app.command("pin")(pin.pin)
app.command("unpin")(pin.unpin)
app.command("forget")(forget.forget)
app.command("drill")(drill.drill)
app.command("drills")(drill.drills)
app.command("rescue")(rescue.rescue)
app.command("status")(status.status)
app.add_typer(binlog.app, name="binlog")
app.command("runbook")(runbook.runbook)
app.add_typer(clone_app.app, name="clone")
app.command("reap")(reap.reap)
app.command("example")(example.example)
app.command("grants")(example.grants)
app.add_typer(key.app, name="key")
app.add_typer(config.app, name="config")


def _version(requested: bool) -> None:
    if requested:
        print(f"zsnapdb {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Backs up, restores and clones MySQL and MariaDB servers whose files live on ZFS."""


def main() -> None:
    """Run the command line and end with its exit code."""
    ending.open_standard_streams()
    ending.interrupt_on_signals()
    sys.exit(ending.exit_code_of(app))
