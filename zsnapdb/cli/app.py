"""The root of the command line. `exit_codes.py` turns exceptions into exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from copy import copy as copy_of

import typer
from typer.main import get_command

from zsnapdb import __version__
from zsnapdb.cli import (
    adopt,
    agent,
    backup,
    binlog,
    completion,
    config,
    consolidate,
    copy,
    doctor,
    drill,
    example,
    exit_codes,
    fleet,
    init,
    inventory,
    key,
    mcp,
    migration_check,
    notify,
    options,
    pin,
    process,
    prune,
    query,
    report,
    rescue,
    restore,
    rewind,
    runbook,
    schema,
    serve,
    setup,
    status,
    token,
    undo,
    verify,
)
from zsnapdb.cli.clone import app as clone_app
from zsnapdb.cli.clone import pool
from zsnapdb.cli.evidencing import evidencing
from zsnapdb.cli.groups import Heading
from zsnapdb.cli.notifying import notifying
from zsnapdb.cli.process import collect_rarely
from zsnapdb.cli.vm import app as vm_app

Command = Callable[..., object]
"""What runs a command line, and then raises SystemExit."""

app = typer.Typer(
    name="zsnapdb",
    cls=exit_codes.Root,
    help="Backs up, restores and clones MySQL and MariaDB servers whose files live on ZFS.",
    epilog="A variable can set each option: ZSNAPDB_BACKUP_WAIT=10m stands for `zsnapdb backup --wait 10m`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": options.PREFIX},
)
app.command("backup", rich_help_panel=Heading.BACKUP)(notifying("backup", evidencing("backup", backup.backup)))
app.command("snapshot", rich_help_panel=Heading.BACKUP)(notifying("snapshot", backup.snapshot))
app.command("list", rich_help_panel=Heading.BACKUP)(inventory.list_backups)
app.command("show", rich_help_panel=Heading.BACKUP)(inventory.show_backup)
app.command("status", rich_help_panel=Heading.BACKUP)(status.status)
app.add_typer(fleet.app, name="fleet", rich_help_panel=Heading.BACKUP)
app.add_typer(binlog.app, name="binlog", rich_help_panel=Heading.BACKUP)
app.command("restore", rich_help_panel=Heading.RESTORE)(evidencing("restore", restore.restore))
app.command("rewind", rich_help_panel=Heading.RESTORE)(notifying("rewind", evidencing("rewind", rewind.rewind)))
app.command("runbook", rich_help_panel=Heading.RESTORE)(runbook.runbook)
app.command("rescue", rich_help_panel=Heading.RESTORE)(evidencing("rescue", rescue.rescue))
app.command("undo", rich_help_panel=Heading.RESTORE)(evidencing("undo", undo.undo, only_with="applied"))
app.command("drill", rich_help_panel=Heading.RESTORE)(notifying("drill", evidencing("drill", drill.drill)))
app.command("drills", rich_help_panel=Heading.RESTORE)(drill.drills)
app.add_typer(clone_app.app, name="clone", rich_help_panel=Heading.CLONES)
app.add_typer(vm_app.app, name="vm", rich_help_panel=Heading.CLONES)
app.command("serve", rich_help_panel=Heading.CLONES)(serve.serve)
app.command("serve-helper", rich_help_panel=Heading.CLONES)(serve.serve_helper)
app.command("mcp", rich_help_panel=Heading.CLONES)(mcp.mcp)
app.add_typer(token.app, name="token", rich_help_panel=Heading.CLONES)
app.command("query", rich_help_panel=Heading.CLONES)(query.query)
app.command("diff", rich_help_panel=Heading.CLONES)(query.diff)
app.command("migration-check", rich_help_panel=Heading.CLONES)(migration_check.migration_check)
app.command("reap", rich_help_panel=Heading.CLONES)(pool.reap)
app.command("init", rich_help_panel=Heading.REPOSITORY)(init.init)
app.command("verify", rich_help_panel=Heading.REPOSITORY)(notifying("verify", verify.verify))
app.command("copy", rich_help_panel=Heading.REPOSITORY)(notifying("copy", evidencing("copy", copy.copy)))
app.command("consolidate", rich_help_panel=Heading.REPOSITORY)(evidencing("consolidate", consolidate.consolidate))
app.command("prune", rich_help_panel=Heading.REPOSITORY)(notifying("prune", evidencing("prune", prune.prune)))
app.command("pin", rich_help_panel=Heading.REPOSITORY)(evidencing("pin", pin.pin))
app.command("unpin", hidden=True)(evidencing("unpin", pin.unpin))
app.command("adopt", rich_help_panel=Heading.REPOSITORY)(evidencing("adopt", adopt.adopt))
app.command("acknowledge-removed", rich_help_panel=Heading.REPOSITORY)(
    evidencing("acknowledge-removed", adopt.acknowledge_removed)
)
app.command("forget", hidden=True)(evidencing("forget", adopt.forget))
app.add_typer(report.app, name="report", rich_help_panel=Heading.REPOSITORY)
app.add_typer(agent.app, name="agent", rich_help_panel=Heading.HOST)
app.add_typer(key.app, name="key", rich_help_panel=Heading.REPOSITORY)
app.command("setup", rich_help_panel=Heading.HOST)(setup.setup)
app.command("doctor", rich_help_panel=Heading.HOST)(doctor.doctor)
app.command("advise", hidden=True)(doctor.advise)
app.add_typer(config.app, name="config", rich_help_panel=Heading.HOST)
app.add_typer(notify.app, name="notify", rich_help_panel=Heading.HOST)
app.command("grants", rich_help_panel=Heading.HOST)(example.grants)
app.command("example", rich_help_panel=Heading.HOST)(example.example)
app.command("schema", rich_help_panel=Heading.PROGRAMS)(schema.schema)
app.command("completion", rich_help_panel=Heading.PROGRAMS)(completion.completion)


def _version(requested: bool) -> None:
    if requested:
        print(f"zsnapdb {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, allow_from_autoenv=False, help="Print the version."
    ),
) -> None:
    """Backs up, restores and clones MySQL and MariaDB servers whose files live on ZFS."""


def narrowed(words: Sequence[str]) -> typer.Typer:
    """Return the application with the command that the first word names alone; the whole one if it names none.

    To build the options of all commands takes a tenth of the processor time of a command with little to do.
    """
    name = words[0] if words else ""
    commands = [command for command in app.registered_commands if command.name == name]
    groups = [group for group in app.registered_groups if group.name == name]
    if not commands and not groups:
        return app
    only = copy_of(app)
    only.registered_commands, only.registered_groups = commands, groups
    return only


def prepare() -> None:
    """Let imports cost less, before there are any."""
    collect_rarely()
    # zsnapdb uses no plugins of pydantic. To look for some reads the description of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def built() -> Command:
    """Return the whole application with the options of all commands, for several runs of `main`."""
    return get_command(app)


def main(whole: Command | None = None) -> None:
    """Run the command line and end with its exit code. `whole` is what `built` returned, if that was called before."""
    prepare()
    exit_codes.open_standard_streams()
    exit_codes.own_umask()
    exit_codes.interrupt_on_signals()
    process.end_with_parent(os.environ)
    completion.answer_shells()
    exit_codes.leave(exit_codes.exit_code_of(lambda: _run(whole)))


def _run(whole: Command | None) -> object:
    options.refuse_unknown(os.environ, lambda: whole or built())
    return (whole or narrowed(sys.argv[1:]))(prog_name="zsnapdb")
