"""The lines of the keys in a TOML document."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

KeyPath = tuple[str | int, ...]
"""The names of the tables above a value and its key. A number is a place in an array of tables, from 0."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each value in a TOML document, from 1: the first line of its statement.

    The text is valid TOML. Each statement is parsed alone, below the header of its table.
    """
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            start = number
        statement += f"{line}\n"
        parsed = _parsed(statement)
        if parsed is None:
            continue
        if statement.lstrip().startswith("["):
            table = _table(parsed, statement, counts)
        else:
            found |= {(*table, *path): start for path in _leaves(parsed) if path}
        statement = ""
    return found


def _parsed(statement: str) -> dict[str, Any] | None:
    """Return the tables of a statement. None if its value continues on the next line."""
    try:
        return tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None


def _table(parsed: Mapping[str, Any], statement: str, counts: dict[KeyPath, int]) -> KeyPath:
    """Return the path of the table that a header begins. `counts`: the number of tables in each array so far."""
    path: KeyPath = ()
    inner: Any = parsed
    while inner:
        ((name, inner),) = inner.items()
        path = (*path, name)
        if isinstance(inner, list):
            inner = inner[0]
        is_new = not inner and statement.lstrip().startswith("[[")
        if is_new:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _leaves(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of each value that is no table and no list of tables."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for index, below in enumerate(value):
            yield from _leaves(below, (*path, index))
    else:
        yield path
