"""`zsnapdb schema`: prints the JSON schema of the documents that a command prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import completion
from zsnapdb.cli.commands import COMMANDS, Command
from zsnapdb.cli.options import argument
from zsnapdb.report import schemas


def _types(documents: str) -> Iterator[schemas.DocumentType]:
    for part in documents.split():
        module, _, views = part.partition(":")
        for view in views.split(","):
            yield schemas.DocumentType.of(getattr(import_module(f"zsnapdb.report.{module}"), view))


def printed_documents() -> Mapping[str, tuple[schemas.DocumentType, ...]]:
    """Return the documents that each command prints under `--json` on success.

    A failed command prints an error instead.
    """
    return {
        words: tuple(_types(entry.documents))
        for words, entry in COMMANDS.items()
        if isinstance(entry, Command) and entry.documents
    }


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of every document that a command prints.

    Raises UsageError if the command prints no documents.
    """
    documents = printed_documents()
    if command not in documents:
        raise UsageError(
            f"there is no command {command!r} with --json", hint=f"choose from: {', '.join(sorted(documents))}"
        )
    return schemas.schema(f"zsnapdb {command} --json", (*documents[command], schemas.ERROR))


def whole_schema() -> dict[str, Any]:
    """Return the schema of every document that any command prints."""
    kinds = {one.kind: one for types in printed_documents().values() for one in types}
    return schemas.schema("zsnapdb --json", (*(kinds[name] for name in sorted(kinds)), schemas.ERROR))


def schema(
    command: Annotated[
        list[str] | None,
        argument(
            "COMMAND",
            "Words of a command, such as clone list. Default: all documents of all commands.",
            autocompletion=completion.documented,
        ),
    ] = None,
) -> None:
    """Print the JSON schema of a command's output under --json. Needs no configuration.

    Programs that read documents must ignore unknown fields.
    """
    print(json.dumps(schema_of(" ".join(command)) if command else whole_schema(), indent=2))
