"""Reference of the command line, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.references.commands import CommandText, OptionText, commands

_HEAD = """# Command line

This page is made from the program (`make references`). `zsnapdb COMMAND --help` prints the same, and manual pages lie
in `docs/man`. A variable of the environment can set each option. The command line comes before the variable.
[Exit codes](exit-codes.md) are the same for every command, but for `doctor` and `status`.
"""


def page() -> str:
    """Return the page as Markdown."""
    every = commands()
    lines = [_HEAD, *_index(every), *(line for command in every[1:] for line in _command(command))]
    return "\n".join(lines).rstrip() + "\n"


def _index(every: Sequence[CommandText]) -> Iterator[str]:
    for heading in dict.fromkeys(command.heading for command in every[1:]):
        yield f"**{heading}**"
        yield ""
        for command in every[1:]:
            if command.heading == heading:
                yield f"- [`{command.name}`](#{_anchor(command)}): {command.summary}"
        yield ""


def _anchor(command: CommandText) -> str:
    return command.name.replace(" ", "-")


def _command(command: CommandText) -> Iterator[str]:
    yield f"## {command.name}"
    yield ""
    yield "```"
    yield command.usage
    yield "```"
    yield ""
    for paragraph in (command.summary, *command.paragraphs):
        yield paragraph
        yield ""
    rows = [option for option in (*command.arguments, *command.options) if option.names != ("--help", "-h")]
    if rows:
        yield "| option | meaning | default | variable |"
        yield "|---|---|---|---|"
        yield from (_row(option) for option in rows)
        yield ""
    if command.examples:
        yield from ("```sh", *command.examples, "```", "")


def _row(option: OptionText) -> str:
    cells = (f"`{option.written}`", option.help, option.default, f"`{option.variable}`" if option.variable else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
