"""Checks what commands print under `--json` against the published schemas.

A schema lets programs meet fields that they do not know. Here a document may have none beside those of its schema.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from zsnapdb.cli.schema import printed_documents, schema_of, whole_schema

DOCUMENTS = printed_documents()


class WrongDocument(AssertionError):
    """A printed document that its schema does not allow."""


def closed(schema: Any) -> Any:
    """Return the schema without the freedom to have other fields."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


def command_in(words: Sequence[str]) -> str | None:
    """Return the command with documents that a command line names; None if it names none."""
    named = [word for word in words if not word.startswith("-")]
    found = (" ".join(named[:length]) for length in (3, 2, 1))
    return next((command for command in found if command in DOCUMENTS), None)


def check_printed(words: Sequence[str], stdout: str) -> None:
    """WrongDocument unless every line of stdout is a document of the command. Nothing is checked without `--json`."""
    command = command_in(words)
    if "--json" not in words or command is None:
        return
    kinds = {one.kind for one in DOCUMENTS[command]} | {"error"}
    for line in stdout.splitlines():
        check(json.loads(line), kinds, command)


def check(document: dict[str, Any], kinds: Collection[str], command: str | None = None) -> None:
    """WrongDocument unless the document is of one of these kinds, and as the schema of its kind says."""
    kind = str(document.get("kind"))
    if kind not in kinds:
        raise WrongDocument(f"{command}: the kind {kind!r} is not published")
    wrong = best_match(_validator(command, kind).iter_errors(document))
    if wrong is not None:
        raise WrongDocument(f"{command}, kind {kind}, {wrong.json_path}: {wrong.message}")


@functools.cache
def _validator(command: str | None, kind: str) -> Draft202012Validator:
    whole = _closed_schema(command)
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": whole["$defs"]})


@functools.cache
def _closed_schema(command: str | None) -> Any:
    return closed(schema_of(command) if command is not None else whole_schema())
