"""Adds missing keys to the text of a configuration. Existing values and comments stay byte for byte. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

TablePath = tuple[str, ...]

_HEADER = re.compile(r"[ \t]*\[([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\][ \t]*(?:#.*)?\r?\n?")


@dataclass(frozen=True)
class ConfigTable:
    """A table that setup wants in the configuration, with its lines `key = value`. A key may be dotted."""

    path: TablePath
    lines: tuple[str, ...]

    @property
    def keys(self) -> tuple[TablePath, ...]:
        return tuple((*self.path, *line.partition(" = ")[0].split(".")) for line in self.lines)

    @property
    def text(self) -> str:
        return "\n".join((f"[{'.'.join(self.path)}]", *self.lines))


@dataclass(frozen=True)
class Merge:
    """A configuration with the added keys.

    - `added`: the tables and lines that were added
    - `stays`: sentences about each key that the file sets in a different way, or that a user removed from the file
    - `failed`: the lines that could not be added, because of the form in which the file defines their table
    - `keys`: the keys of all tables, whether they were added or not
    """

    text: str
    added: tuple[ConfigTable, ...] = ()
    stays: tuple[str, ...] = ()
    failed: tuple[ConfigTable, ...] = ()
    keys: frozenset[TablePath] = frozenset()


def document_of(text: str) -> Mapping[str, Any] | None:
    """Return the TOML document in a text; None if it is invalid."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def subtables(document: Any, *path: str) -> Mapping[str, Any]:
    """Return the table at the path; empty if the document has no such table."""
    table = value_at(document, path)
    return table if isinstance(table, dict) else {}


def value_at(document: Any, path: TablePath) -> Any:
    """Return the value at the path; None if the document has no such value."""
    table: Any = document
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def strings(value: Any) -> Iterator[str]:
    """Yield every string in the values of a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def merge(configured: str, tables: Sequence[ConfigTable], offered: Collection[TablePath] = ()) -> Merge:
    """Add the keys of the tables that the configuration does not have.

    A key in `offered` is not added, because an earlier setup wrote the key, and a user removed it since.
    """
    text, added, stays, failed = configured, list[ConfigTable](), list[str](), list[ConfigTable]()
    for table in tables:
        document = document_of(text) or {}
        lines = []
        for line, path in zip(table.lines, table.keys, strict=True):
            known, name = value_at(document, path), ".".join(path)
            if known is None and path in offered:
                stays.append(f"{name} was removed and stays out")
            elif known is None:
                lines.append(line)
            elif known != value_at(tomllib.loads(table.text), path):
                stays.append(f"{_line_of(text, name, path)} stays (setup would write {line.partition(' = ')[2]})")
        if not lines:
            continue
        wanted = ConfigTable(table.path, tuple(lines))
        made = _with_table(text, document, wanted)
        (failed if made is None else added).append(wanted)
        text = made or text
    return Merge(text, tuple(added), tuple(stays), tuple(failed), all_keys(tables))


def all_keys(tables: Sequence[ConfigTable]) -> frozenset[TablePath]:
    """Return the paths of all keys in the tables."""
    return frozenset(key for table in tables for key in table.keys)


def _line_of(text: str, name: str, path: TablePath) -> str:
    """Return the key with its value as the file writes it, if the value is on the line of its key."""
    inside: TablePath = ()
    for line in text.splitlines():
        header = _HEADER.fullmatch(line)
        inside = tuple(header[1].split(".")) if header is not None else inside
        key, is_set, _ = line.partition("=")
        if is_set and (*inside, *key.strip().split(".")) == path:
            return f"{'.'.join(inside)}: {line.strip()}" if inside else line.strip()
    return name


def _with_table(text: str, document: Mapping[str, Any], table: ConfigTable) -> str | None:
    """Return the text with the lines of the table, so that nothing else changes; None if there is no such text."""
    expected = with_values(document, table)
    return next((made for made in _candidates(text, table) if document_of(made) == expected), None)


def _candidates(text: str, table: ConfigTable) -> Iterator[str]:
    """Yield texts with the lines: below the table's header, in a new table at the end, or below an outer header."""
    lines = text.splitlines(keepends=True)
    headers = [
        (number, tuple(match[1].split("."))) for number, match in enumerate(map(_HEADER.fullmatch, lines)) if match
    ]
    new = "".join(f"{line}\n" for line in table.lines)
    for number, path in headers:
        if path == table.path:
            yield _inserted(lines, number + 1, new)
    yield f"{text.rstrip()}\n\n{table.text}\n".lstrip("\n")
    for depth in range(len(table.path) - 1, 0, -1):
        dotted = "".join(f"{'.'.join(table.path[depth:])}.{line}\n" for line in table.lines)
        for number, path in headers:
            if path == table.path[:depth]:
                yield _inserted(lines, number + 1, dotted)
    yield "".join(f"{'.'.join(table.path)}.{line}\n" for line in table.lines) + text


def _inserted(lines: Sequence[str], at: int, new: str) -> str:
    before = "".join(lines[:at])
    return before + ("" if before.endswith("\n") else "\n") + new + "".join(lines[at:])


def with_values(document: Mapping[str, Any], table: ConfigTable) -> dict[str, Any]:
    """Return the document with the values of the table."""
    made = deepcopy(dict(document))
    inner: Any = made
    for key in table.path:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else {}
    _update(inner, subtables(tomllib.loads(table.text), *table.path))
    return made


def _update(target: Any, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _update(target[key], value)
        elif isinstance(target, dict):
            target[key] = value
