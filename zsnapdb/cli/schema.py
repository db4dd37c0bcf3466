"""`zsnapdb schema`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from zsnapdb.cli import completion


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="The words of a command, such as clone list. Without them: every document of every command.",
            show_default=False,
            autocompletion=completion.documented,
        ),
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints under --json. Needs no configuration.

    A program that reads documents must allow fields that it does not know.
    """
    from zsnapdb.report import schemas

    made = schemas.schema_of(" ".join(command)) if command else schemas.whole_schema()
    print(json.dumps(made, indent=2))
