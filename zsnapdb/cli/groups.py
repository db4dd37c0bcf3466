"""How groups of commands show their help: under headings, each command with its whole sentence."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from typer.core import TyperGroup

from zsnapdb.cli.log_options import log_options
from zsnapdb.cli.options import command_prefix, name_variables

_NO_LIMIT = 1000
"""Characters of the first sentence of a command's help. None is longer."""


class Heading(StrEnum):
    """The headings of the help of `zsnapdb`, in their order."""

    BACKUP = "Backup"
    RESTORE = "Restore"
    CLONES = "Clones"
    REPOSITORY = "Repository"
    HOST = "Host"
    PROGRAMS = "For programs and shells"


def _add_log_options(command: Any) -> None:
    """Let a command take the options of the log, unless it passes unknown options on or has them already."""
    names = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    if command is not None and not command.ignore_unknown_options and "--log-level" not in names:
        command.params.extend(log_options(hidden=True))


class CommandGroup(TyperGroup):
    """A group of commands whose help cuts no line."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of the name, or None. Each option has its variable, if the group has a prefix for them."""
        command = super().get_command(ctx, cmd_name)
        _add_log_options(command)
        if ctx.auto_envvar_prefix:
            name_variables(command, command_prefix(ctx.auto_envvar_prefix, cmd_name))
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its sentence, below its heading. Those without a heading come first."""
        sections: dict[str, list[tuple[str, str]]] = {"Commands": [], **{str(heading): [] for heading in Heading}}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                row = (name, command.get_short_help_str(limit=_NO_LIMIT))
                sections[str(heading) if isinstance(heading, str) else "Commands"].append(row)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
