"""Which tables masking has changed, by the files of their engines. Pure.

The change times that a server shows are not enough: InnoDB forgets the change time of a table with its definition, so
after an instant DROP COLUMN the dropped values are in the file and the server shows no change (refman 8.4, "The
INFORMATION_SCHEMA TABLES Table", UPDATE_TIME). Whatever writes a row writes to a file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

MARGIN_NS = 100_000_000
"""A file time can lie behind the clock by one tick of the kernel, at most 10 ms."""
NO_ROWS = (".frm", ".opt", ".trg", ".trn", ".par", ".sdi")
"""Suffixes of files that hold definitions."""
_FULLTEXT = re.compile(r"fts_[0-9a-f]{16}_")
"""Names of InnoDB's own tables of a fulltext index; a change of the index also changes the file of its table."""


@dataclass(frozen=True)
class FileState:
    """The state of a file at one moment; a write changes it. The time is in nanoseconds since 1970."""

    size: int
    modified_ns: int
    inode: int


@dataclass(frozen=True)
class Changes:
    """The states of files by `folder/name`, before and after; `since_ns` is the time of `before`, since 1970."""

    before: Mapping[str, FileState]
    after: Mapping[str, FileState]
    since_ns: int


@dataclass(frozen=True)
class TableFiles:
    """The name of a table. `needs_file`: its rows must be in files of its own, or in a file that tables share."""

    schema: str
    table: str
    needs_file: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Folder and first part of the names of its files, in small letters: some servers write all names so."""
        return file_name(self.schema).casefold(), file_name(self.table).casefold()


def file_name(name: str) -> str:
    """Return a name as file names have it (refman 8.4, "Mapping of Identifiers to File Names").

    Some letters beyond ASCII have shorter codes, which are not known here. A table with such a letter in its name seems
    to have no file, so it counts as changed.
    """
    return "".join(c if c == "_" or (c.isascii() and c.isalnum()) else f"@{ord(c):04x}" for c in name)


def changed(tables: Collection[TableFiles], changes: Changes) -> list[TableFiles]:
    """Return the tables that may have changed.

    A file that was written at about the time of `before` counts as changed. If a changed file belongs to no table, all
    tables of its folder count as changed. A table without a file of its own counts as changed.
    """
    known = {table.key for table in tables}
    written, present = set(), set()
    for path, state in changes.after.items():
        folder, _, name = path.casefold().rpartition("/")
        if name.endswith(NO_ROWS):
            continue
        key = (folder, re.split(r"[.#]", name)[0])
        present.add(key)
        if changes.before.get(path) != state or state.modified_ns >= changes.since_ns - MARGIN_NS:
            written.add((*key, bool(_FULLTEXT.match(name))))
    strays = {folder for folder, stem, fulltext in written if (folder, stem) not in known and not fulltext}
    keys = {(folder, stem) for folder, stem, _ in written}
    return [
        table
        for table in tables
        if table.key in keys or table.key[0] in strays or (table.needs_file and table.key not in present)
    ]
