"""Reference of JSON documents, in Markdown, and their schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from zsnapdb.cli.schema import printed_documents, whole_schema

_HEAD = """# JSON

This page is made from the program (`make references`). Under `--json` a command prints one JSON document on one line,
whatever else it says on stderr. `binlog find --follow` prints one for each transaction. `version` is the version of the
format, now 1, and `kind` says which fields the document has. A command that fails prints an [error](#error) instead.
Sizes are in bytes, times in UTC.

[schema.json](schema.json) is the JSON schema of all documents. `zsnapdb schema COMMAND` prints the schema of one
command, `zsnapdb schema` that of all. New fields may appear in any release: a program must allow fields that it does
not know. A field that goes or changes is a new `version`.

## Documents of each command

| command | kinds of documents |
|---|---|"""


def schema() -> str:
    """Return the schema of every document as text."""
    return json.dumps(whole_schema(), indent=1) + "\n"


def page() -> str:
    """Return the page as Markdown."""
    parts = whole_schema()["$defs"]
    rows = [
        f"| `zsnapdb {command}` | {', '.join(f'[{one.kind}](#{one.kind})' for one in types)} |"
        for command, types in sorted(printed_documents().items())
    ]
    lines = [_HEAD, *rows, "", *(line for name, part in parts.items() for line in _part(name, part))]
    return "\n".join(lines).rstrip() + "\n"


def _part(name: str, part: dict[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    if "description" in part:
        yield " ".join(part["description"].split())
        yield ""
    if "enum" in part:
        yield _type(part)
        yield ""
    required = part.get("required", ())
    fields = {key: one for key, one in part.get("properties", {}).items() if key not in ("version", "kind")}
    if fields:
        yield "| field | type |"
        yield "|---|---|"
        for key, one in fields.items():
            yield f"| `{key}` | {_type(one)}{'' if key in required else ', may be missing'} |"
        yield ""


def _type(schema: dict[str, Any]) -> str:
    """Return a type in a few words, with links to the parts it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            return f"object of {_type(values)}"
        fields = ", ".join(f"`{key}`: {_type(one)}" for key, one in schema.get("properties", {}).items())
        return f"object ({fields})" if fields else "object"
    return str(schema.get("type", "any value"))
