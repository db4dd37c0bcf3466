"""Tree of commands of the command line, for references and manual pages."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from typer.main import get_command

from zsnapdb.cli.app import app
from zsnapdb.cli.commands import COMMANDS, Command

PROGRAM = "zsnapdb"


@dataclass(frozen=True)
class OptionText:
    """An option or argument: its names, value and help, its default as shown ("" if none), its variable."""

    names: tuple[str, ...]
    metavar: str
    help: str
    default: str
    variable: str

    @property
    def written(self) -> str:
        """Names and value, as users write them."""
        return ", ".join(self.names) + (f" {self.metavar}" if self.metavar else "")


@dataclass(frozen=True)
class CommandText:
    """A command: its words after `zsnapdb`, its heading in the help, its usage and its parameters."""

    words: tuple[str, ...]
    heading: str
    usage: str
    summary: str
    paragraphs: tuple[str, ...]
    arguments: tuple[OptionText, ...]
    options: tuple[OptionText, ...]
    is_group: bool
    examples: tuple[str, ...] = ()
    """Command lines to copy."""

    @property
    def name(self) -> str:
        """The complete command, as it is typed."""
        return " ".join((PROGRAM, *self.words))


def commands() -> list[CommandText]:
    """Return every command and group, in the order of the help, each group before its commands."""
    root: Any = get_command(app)
    return list(_walk(root, (), "", None))


def _walk(command: Any, words: tuple[str, ...], heading: str, parent: Any) -> Iterator[CommandText]:
    context = command.make_context(PROGRAM if not words else words[-1], [], parent=parent, resilient_parsing=True)
    children = [(name, command.get_command(context, name)) for name in getattr(command, "commands", {})]
    yield _text(command, words, heading, is_group=bool(children))
    for name, child in children:
        if not child.hidden:
            panel = getattr(child, "rich_help_panel", None)
            yield from _walk(child, (*words, name), str(panel) if isinstance(panel, str) else heading, context)


def _text(command: Any, words: tuple[str, ...], heading: str, *, is_group: bool) -> CommandText:
    body = inspect.cleandoc(command.help or "")
    first, *rest = [" ".join(part.split()) for part in body.split("\n\n")] or [""]
    declared = COMMANDS.get(" ".join(words))
    examples = declared.examples if isinstance(declared, Command) else ()
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    return CommandText(
        words=words,
        heading=heading,
        usage=" ".join((PROGRAM, *words, *_usage(parameters, is_group=is_group))),
        summary=first,
        paragraphs=tuple(rest) + ((" ".join(command.epilog.split()),) if command.epilog and not examples else ()),
        arguments=tuple(_option(p) for p in parameters if p.param_type_name == "argument"),
        options=tuple(_option(p) for p in parameters if p.param_type_name == "option"),
        is_group=is_group,
        examples=tuple(f"{PROGRAM} {one}" for one in examples),
    )


def _option(parameter: Any) -> OptionText:
    is_argument = parameter.param_type_name == "argument"
    names = (parameter.metavar or parameter.name.upper(),) if is_argument else _names(parameter)
    takes_value = not is_argument and not parameter.is_flag
    return OptionText(
        names=names,
        metavar=_value(parameter) if takes_value else "",
        help=" ".join((parameter.help or "").split()),
        default=_default(parameter),
        variable="" if is_argument else _variable(parameter),
    )


def _usage(parameters: Sequence[Any], *, is_group: bool) -> Iterator[str]:
    if any(parameter.param_type_name == "option" for parameter in parameters):
        yield "[OPTIONS]"
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            word = parameter.metavar or parameter.name.upper()
            yield word if parameter.required else f"[{word}]"
    if is_group:
        yield "COMMAND"


def _value(parameter: Any) -> str:
    """Return the value of an option as users write it: its metavar, else the choices of an enumeration."""
    if parameter.metavar:
        return str(parameter.metavar)
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    choices = getattr(getattr(parameter, "type", None), "choices", ())
    return "|".join(str(getattr(choice, "value", choice)) for choice in choices) or "VALUE"


def _names(parameter: Any) -> tuple[str, ...]:
    return tuple(sorted((*parameter.opts, *parameter.secondary_opts), key=lambda name: (len(name) > 2, name)))


def _default(parameter: Any) -> str:
    """Return the default as shown in the help: a text in the declaration, else a simple value."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = getattr(parameter.default, "value", parameter.default)
    is_shown = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if parameter.show_default and is_shown else ""


def _variable(parameter: Any) -> str:
    return parameter.envvar if isinstance(parameter.envvar, str) else ""
