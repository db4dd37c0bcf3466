"""The root of the command line; only this module turns an exception into an exit code."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import typer

from zsnapdb import __version__
from zsnapdb.cli import (
    backup,
    binlog,
    config,
    copy,
    doctor,
    drill,
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
from zsnapdb.errors import ZsnapdbError

app = typer.Typer(
    name="zsnapdb",
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
app.command("drill")(drill.drill)
app.command("drills")(drill.drills)
app.command("rescue")(rescue.rescue)
app.command("status")(status.status)
app.add_typer(binlog.app, name="binlog")
app.command("runbook")(runbook.runbook)
app.add_typer(clone_app.app, name="clone")
app.command("reap")(reap.reap)
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


def _terminated(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        print(f"zsnapdb: {note}", file=sys.stderr)


def _interrupted(error: KeyboardInterrupt) -> NoReturn:
    print("zsnapdb: interrupted", file=sys.stderr)
    _print_notes(error)
    sys.exit(130)


def main() -> None:
    """Run the command line and end with its exit code; expected errors are printed without a traceback."""
    # SIGTERM from a service manager works like Ctrl-C: locks are released, incomplete files and datasets removed.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app(standalone_mode=True)
    except ZsnapdbError as error:
        if "--json" in sys.argv:
            from zsnapdb.report import document

            print(document.error(error))
        print(f"zsnapdb: {error}", file=sys.stderr)
        _print_notes(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:
        _interrupted(error)
    except SystemExit as ended:
        # typer turns an interrupt into its own exit; the notes of the interrupt would be lost.
        cause = ended.__context__.__cause__ if ended.__context__ is not None else None
        if isinstance(cause, KeyboardInterrupt):
            _interrupted(cause)
        raise
