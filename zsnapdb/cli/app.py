"""The root of the command line. `main_process.py` turns exceptions into exit codes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer
from typer.main import get_command

from zsnapdb import __version__
from zsnapdb.cli import completion, main_process, options, process_attributes
from zsnapdb.cli.command_groups import load_all

Command = Callable[..., object]
"""A function that runs a command line and then raises SystemExit."""

app = typer.Typer(
    name="zsnapdb",
    cls=main_process.Root,
    help="Backs up, restores and clones MySQL and MariaDB servers whose files live on ZFS.",
    epilog="A variable can set each option: ZSNAPDB_BACKUP_WAIT=10m stands for `zsnapdb backup --wait 10m`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": options.PREFIX},
)


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


def prepare() -> None:
    """Make later imports faster. Call this function before the first large import."""
    process_attributes.collect_rarely()
    # zsnapdb uses no plugins of pydantic. A search for plugins would read the description of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def built() -> Command:
    """Return the whole application with all commands loaded, for repeated calls of `main`."""
    whole: Any = get_command(app)
    load_all(whole)
    return whole  # type: ignore[no-any-return]


def main(whole: Command | None = None) -> None:
    """Run the command line and exit with its exit code. With `whole`, from `built`, no command is reloaded."""
    prepare()
    main_process.open_standard_streams()
    main_process.own_umask()
    main_process.interrupt_on_signals()
    process_attributes.end_with_parent(os.environ)
    completion.answer_shells()
    main_process.leave(main_process.exit_code_of(lambda: _run(whole)))


def _run(whole: Command | None) -> object:
    options.refuse_unknown(os.environ, lambda: whole or built())
    return (whole or app)(prog_name="zsnapdb")
