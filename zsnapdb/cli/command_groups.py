"""Groups of commands. The module of a command is imported when the command is used."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import CodeType
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from zsnapdb.cli.commands import COMMANDS, Command, Group, Heading
from zsnapdb.cli.log_options import log_options
from zsnapdb.cli.options import CloneName, command_prefix, guid_option, name_variables
from zsnapdb.cli.printed_commands import naming_instance

_NO_LIMIT = 1000
"""Maximum number of characters of the first sentence in a command's help. All first sentences are shorter."""


class GroupCommands(Mapping[str, Any]):
    """The commands of a group by name. A command is loaded when it is first used."""

    def __init__(self, words: tuple[str, ...] = (), loaded: Mapping[str, Any] | None = None) -> None:
        """Use the group with the name `words`, and additional commands that `commands.py` does not declare."""
        self._words = words
        self._loaded = dict(loaded or {})
        depth = len(words)
        known = [one.split() for one in COMMANDS]
        self._names = [*(each[depth] for each in known if each[:-1] == [*words]), *self._loaded]

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _loaded((*self._words, name), self.declared(name))
        return self._loaded[name]

    def declared(self, name: str) -> Command | Group:
        """Return the declaration of the command.

        Raises: KeyError if the command does not exist.
        """
        return COMMANDS[" ".join((*self._words, name))]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommandGroup(TyperGroup):
    """A group of commands. Its help does not truncate lines."""

    commands: GroupCommands  # type: ignore[assignment]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = GroupCommands((), self.commands)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's
        """Return the names of the commands, in the order of the help."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None.

        If the group has a prefix, environment variables can set the command's options.
        """
        command = self.commands.get(cmd_name)
        _add_log_options(command)
        if ctx.auto_envvar_prefix:
            name_variables(command, command_prefix(ctx.auto_envvar_prefix, cmd_name))
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command, with its first sentence, below its heading. Commands without a heading come first."""
        sections: dict[str, list[tuple[str, str]]] = {"Commands": [], **{str(heading): [] for heading in Heading}}
        for name in self.list_commands(ctx):
            entry = self.commands.declared(name)
            if not entry.hidden:
                text = entry.help if isinstance(entry, Group) else _docstring(entry.run)
                row = (name, TyperCommand(name, help=text).get_short_help_str(limit=_NO_LIMIT))
                sections[str(entry.heading or "Commands")].append(row)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def load_all(group: CommandGroup) -> None:
    """Load every command of the group, including those of its subgroups."""
    for command in group.commands.values():
        if isinstance(command, CommandGroup):
            load_all(command)


def _loaded(words: tuple[str, ...], entry: Command | Group) -> Any:
    if isinstance(entry, Group):
        made = typer.Typer(
            name=words[-1],
            cls=CommandGroup,
            help=entry.help,
            callback=_function(entry.run) if entry.run else None,
            invoke_without_command=entry.run is not None,
            no_args_is_help=entry.shows_help,
            rich_markup_mode=None,
        )
        group: Any = get_group(made)
        group.rich_help_panel, group.commands = entry.heading, GroupCommands(words)
        return group
    function = naming_instance(_function(entry.run))
    if entry.notifies or entry.evidence is not None:
        from zsnapdb.cli.notified_commands import wrap_with_notifications

        function = wrap_with_notifications(words[0], entry, function)
    info = CommandInfo(
        words[-1],
        callback=function,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True} if entry.passes_words_on else None,
        hidden=entry.hidden,
        epilog=entry.epilog,
        rich_help_panel=entry.heading,
    )
    command: Any = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
    if get_type_hints(function, include_extras=True).get("name") == CloneName:
        command.params.append(guid_option())
    return command


def _function(run: str) -> Callable[..., None]:
    """Import the module of a command and return its function."""
    module, _, name = run.rpartition(".")
    function: Callable[..., None] = getattr(import_module(f"zsnapdb.cli.{module}"), name)
    return function


def _docstring(run: str) -> str:
    """Read the docstring of a command's function from the compiled module, without importing the module."""
    module, _, name = run.rpartition(".")
    spec = importlib.util.find_spec(f"zsnapdb.cli.{module}")
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    function = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    return inspect.cleandoc(str(function.co_consts[0]))


def _add_log_options(command: Any) -> None:
    """Add the log options to a command, unless it already has these options or passes on unknown options."""
    names = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    if command is not None and not command.ignore_unknown_options and "--log-level" not in names:
        command.params.extend(log_options(hidden=True))
