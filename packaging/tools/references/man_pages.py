"""Manual pages of section 1: one for `zsnapdb`, and one for each command with all its subcommands (man(7))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tools.references.commands import CommandText, OptionText, commands
from zsnapdb.base.errors import EXIT_CODES
from zsnapdb.verbs import delegation

_PROGRAM = (
    "Members of the group zsnapdb-clone run it by sudo, as their administrator allows (`zsnapdb example"
    " sudoers.d/zsnapdb-clone`). It takes these commands, and changes the caller's own clones alone."
)
_FILES = (
    ("/etc/zsnapdb/zsnapdb.toml", "the configuration (ZSNAPDB_CONFIG names another file)"),
    ("/var/lib/zsnapdb", "journals of interrupted runs, and what this host stored"),
    ("/var/cache/zsnapdb", "what the repositories hold too"),
    ("/run/zsnapdb", "locks and marks"),
)


def pages() -> Mapping[str, str]:
    """Return the text of each manual page by file name."""
    every = commands()
    first = [command for command in every if len(command.words) == 1]
    texts = {"zsnapdb.1": _root(every[0], first)}
    for command in first:
        below = [other for other in every if other.words[:1] == command.words and other is not command]
        texts[f"zsnapdb-{command.words[0]}.1"] = _page(command, below)
    return texts


def escaped(text: str) -> str:
    """Return text for troff: no backslash, no control line, and hyphens that stay hyphens (groff_char(7))."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _head(name: str, summary: str) -> Iterator[str]:
    yield f'.TH "{escaped(name).upper()}" "1" "" "zsnapdb" "zsnapdb"'
    yield ".SH NAME"
    yield f"{escaped(name)} \\- {escaped(summary.rstrip('.'))}"


def _root(root: CommandText, first: Sequence[CommandText]) -> str:
    lines = [*_head("zsnapdb", root.summary), ".SH SYNOPSIS", f".B {escaped(root.usage)}", ".SH COMMANDS"]
    for heading in dict.fromkeys(command.heading for command in first):
        lines.append(f'.SS "{escaped(heading)}"')
        for command in first:
            if command.heading == heading:
                lines += [".TP", f".BR {escaped('zsnapdb-' + command.words[0])} (1)", escaped(command.summary)]
    lines += [".SH ENVIRONMENT", *(escaped(paragraph) for paragraph in root.paragraphs), ".SH FILES"]
    for path, meaning in _FILES:
        lines += [".TP", f".I {escaped(path)}", escaped(meaning)]
    lines += _exit_status([])
    return "\n".join(lines) + "\n"


def _page(command: CommandText, below: Sequence[CommandText]) -> str:
    lines = [*_head("-".join(("zsnapdb", *command.words)), command.summary), ".SH SYNOPSIS"]
    for each in below or [command]:
        lines += [f".B {escaped(each.usage)}", ".br"]
    lines += [".SH DESCRIPTION", *_paragraphs(command)]
    if not below:
        lines += [".SH OPTIONS", *_options(command)]
    for each in below:
        if not each.is_group:
            lines += [f'.SH "{escaped(each.name).upper()}"', *_paragraphs(each), *_options(each)]
    if command.words == ("clone",):
        lines += [".SH THE PROGRAM ZSNAPDB\\-CLONE", ".PP", escaped(_PROGRAM), ".nf"]
        lines += [escaped(line) for line in delegation.usage().split("\n")]
        lines.append(".fi")
    if examples := [example for each in (command, *below) for example in each.examples]:
        lines += [".SH EXAMPLES", ".nf", *map(escaped, examples), ".fi"]
    lines += [*_exit_status([command, *below]), ".SH SEE ALSO", ".BR zsnapdb (1)"]
    return "\n".join(lines) + "\n"


def _exit_status(every: Sequence[CommandText]) -> Iterator[str]:
    """Yield the exit codes. Those that one of the commands explains itself come first."""
    yield ".SH EXIT STATUS"
    for command in every:
        for text in (command.summary, *command.paragraphs):
            if (at := text.find("Exit code")) >= 0:
                yield from (".PP", escaped(f"{command.name}: {text[at:]}"))
    for code, meaning in EXIT_CODES.items():
        yield from (".TP", f".B {code}", escaped(meaning))


def _paragraphs(command: CommandText) -> Iterator[str]:
    for paragraph in (command.summary, *command.paragraphs):
        yield ".PP"
        yield escaped(paragraph)


def _options(command: CommandText) -> Iterator[str]:
    for option in (*command.arguments, *command.options):
        yield ".TP"
        yield f".B {escaped(option.written)}"
        yield escaped(_meaning(option))


def _meaning(option: OptionText) -> str:
    notes = [f"Default: {option.default}."] if option.default else []
    notes += [f"Variable: {option.variable}."] if option.variable else []
    return " ".join((option.help, *notes))
