"""Decisions about masking: whether a clone is masked, which tables are rebuilt, and where old rows may remain. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.quantities import format_duration
from zsnapdb.planning.clone.lease import JudgedLease, LeaseVerdict, SourceKind, read_stamp
from zsnapdb.planning.schema_content import CatalogueTable, RowPlace
from zsnapdb.planning.server_family import family

MARGIN_NS = 100_000_000
"""The margin for comparing file times, in nanoseconds.

A file time can be behind the clock by one tick of the kernel, at most 10 ms.
"""
_NO_ROWS = (".frm", ".opt", ".trg", ".trn", ".par", ".sdi")
"""Suffixes of files that contain definitions, but no rows."""
_FULLTEXT = re.compile(r"fts_[0-9a-f]{16}_")
"""Tables that InnoDB creates for a fulltext index. A change of the index also changes the indexed table's file."""


@dataclass(frozen=True)
class FileState:
    """The state of a file at one moment. Every write to the file changes this state.

    The modification time is in nanoseconds since 1970.
    """

    size: int
    modified_ns: int
    inode: int


@dataclass(frozen=True)
class Changes:
    """The states of files by `folder/name`, before and after masking.

    The states in `before` were read at `since_ns`, in nanoseconds since 1970.
    """

    before: Mapping[str, FileState]
    after: Mapping[str, FileState]
    since_ns: int


@dataclass(frozen=True)
class TableFiles:
    """A table and the names of its files.

    The field `needs_file` is set if the rows must be in the table's own files or in a file that several tables share.
    """

    schema: str
    table: str
    needs_file: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """The folder and the first part of the table's file names, in lower case.

        Lower case is used because some servers write all names in lower case.
        """
        return file_name(self.schema).casefold(), file_name(self.table).casefold()


def files_of(table: CatalogueTable) -> TableFiles:
    """Return the table with the names of its files."""
    return TableFiles(table.schema, table.name, needs_file=table.row_place is RowPlace.FILES)


def file_name(name: str) -> str:
    """Return a name in the form used in file names (refman 8.4, "Mapping of Identifiers to File Names").

    This function does not know the shorter codes of some letters outside ASCII. If the name of a table contains such a
    letter, the table seems to have no file. So zsnapdb treats the table as changed.
    """
    return "".join(c if c == "_" or (c.isascii() and c.isalnum()) else f"@{ord(c):04x}" for c in name)


def key_of_file(path: str) -> tuple[str, str] | None:
    """Return the `TableFiles.key` of a file `folder/name`; None if the file contains a definition and no rows."""
    folder, _, name = path.casefold().rpartition("/")
    return None if name.endswith(_NO_ROWS) else (folder, re.split(r"[.#]", name)[0])


def changed(tables: Collection[TableFiles], changes: Changes) -> list[TableFiles]:
    """Return the tables that may have changed.

    A file that was written after `since_ns`, or shortly before, is treated as changed. If a changed file belongs to no
    table, all tables of its folder are treated as changed. A table that needs a file but has none is treated as changed
    too.
    """
    known = {table.key for table in tables}
    written, present = set(), set()
    for path, state in changes.after.items():
        key = key_of_file(path)
        if key is None:
            continue
        present.add(key)
        if changes.before.get(path) != state or state.modified_ns >= changes.since_ns - MARGIN_NS:
            written.add((*key, bool(_FULLTEXT.match(key[1]))))
    strays = {folder for folder, stem, fulltext in written if (folder, stem) not in known and not fulltext}
    keys = {(folder, stem) for folder, stem, _ in written}
    return [
        table
        for table in tables
        if table.key in keys or table.key[0] in strays or (table.needs_file and table.key not in present)
    ]


SYSTEM_SCHEMAS = ("mysql", "sys", "information_schema", "performance_schema")

_LARGEST_UNDO_COUNT = 127
_LOG_SIZE_STEP = 8 << 20
_UNDO_COUNT_MAY_CHANGE = (11, 0)
"""From this release on, MariaDB recreates all undo tablespaces if it starts with another number of them after a slow
shutdown.

Source: innodb_undo_tablespaces, MariaDB manual; observed with 11.8.
"""


_ENGINES = frozenset(("InnoDB", "MyISAM", "Aria", "CSV", "ARCHIVE", "MEMORY", "MRG_MyISAM", "BLACKHOLE"))
"""Engines whose files ALTER TABLE FORCE rewrites, or that store no rows in files."""


def is_masked(*, required: bool, configured: bool, requested: bool) -> bool:
    """Return whether a clone must be masked. This is the case if masking is required or requested."""
    if requested and not configured:
        raise PreflightError(
            "the instance has no masking configured", hint="name SQL files or scripts in masking.run of the instance"
        )
    return required or requested


def dotted(table: CatalogueTable) -> str:
    """Return the name of the table as it is written in the configuration."""
    return f"{table.schema}.{table.name}"


def planned_lines(flavour: Flavour) -> tuple[str, ...]:
    """Return the lines about masking that a plan prints in addition to the configured files."""
    history = "drop the history of system-versioned tables, except of those in masking.keep_history"
    return (history,) if family(flavour).versions_tables else ()


def histories_to_drop(tables: Collection[CatalogueTable], keep: Collection[str]) -> list[CatalogueTable]:
    """Return the system-versioned tables whose history masking drops: all except those in `keep` (schema.table).

    A history contains unmasked rows, and no UPDATE changes them. Raises PreflightError if `keep` contains a table that
    is not system-versioned.
    """
    versioned = [table for table in tables if table.is_versioned and table.schema not in SYSTEM_SCHEMAS]
    unknown = sorted(set(keep) - {dotted(table) for table in versioned})
    if unknown:
        raise PreflightError(
            f"masking.keep_history names {', '.join(unknown)}, which is not a system-versioned table of the clone",
            hint="correct masking.keep_history; it takes schema.table",
        )
    return [table for table in versioned if dotted(table) not in keep]


def needs_rebuild(
    tables: Collection[CatalogueTable], rebuild: str, keep_history: Collection[str], changes: Changes
) -> list[CatalogueTable]:
    """Return the tables that must be rebuilt to remove old rows from their free space.

    These are the changed tables, or all tables if `rebuild` is "all". The result contains no tables of the server
    itself, no sequences (they contain only numbers) and no tables without rows in files.

    Raises PreflightError if masking changed a table whose history is kept, because the history contains the unmasked
    rows.
    """
    touched = set(changed([files_of(table) for table in tables], changes))
    candidates = [
        table
        for table in tables
        if table.schema not in SYSTEM_SCHEMAS and not table.is_sequence and table.row_place is RowPlace.FILES
    ]
    written = [table for table in candidates if files_of(table) in touched]
    wrong = [dotted(table) for table in written if dotted(table) in keep_history]
    if wrong:
        raise PreflightError(
            f"masking changed {', '.join(wrong)}, whose history is kept: the history still has the unmasked rows",
            hint="remove the table from masking.keep_history: then masking drops its history",
        )
    return candidates if rebuild == "all" else written


def renewing_options(flavour: Flavour, release: tuple[int, ...], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options with which a server recreates its redo and undo files after a clean shutdown.

    The result is empty if the server needs no option for this, or cannot recreate the files.
    """
    if flavour is not Flavour.MARIADB:
        return ()
    options = [f"innodb_log_file_size={int(variables['innodb_log_file_size']) + _LOG_SIZE_STEP}"]
    count = int(variables.get("innodb_undo_tablespaces", "0"))
    if release >= _UNDO_COUNT_MAY_CHANGE and count:
        options.append(f"innodb_undo_tablespaces={count + 1 if count < _LARGEST_UNDO_COUNT else count - 1}")
    return tuple(options)


@dataclass(frozen=True)
class Scrubbed:
    """The result of removing old rows from the files.

    The field `logs_known` is set if the snapshot contains the paths of the source's log files. The field `not_emptied`
    contains the shared tablespaces whose free pages were not overwritten. A rebuilt table leaves its old pages in such
    a tablespace.
    """

    undo_renewed: bool
    logs_known: bool = True
    doublewrite_emptied: bool = True
    not_emptied: tuple[str, ...] = ()


def remains(
    flavour: Flavour,
    release: tuple[int, ...],
    variables: Mapping[str, str],
    engines: Mapping[str, int],
    scrubbed: Scrubbed,
) -> tuple[str, ...]:
    """Return the places in the clone's files where bytes of unmasked rows may remain.

    Rows that can be read with SQL are always masked.
    """
    places = ["the snapshot the clone was made from, which is the source's and not in the clone's folders"]
    if not scrubbed.doublewrite_emptied:
        places.append("the doublewrite buffer in the system tablespace, the last 128 pages written")
    undo_in_system = flavour is Flavour.MARIADB and (
        release < _UNDO_COUNT_MAY_CHANGE or not int(variables.get("innodb_undo_tablespaces", "0"))
    )
    if undo_in_system or (flavour is Flavour.MYSQL and not scrubbed.undo_renewed):
        places.append("undo logs: this server cannot recreate them")
    if not scrubbed.logs_known:
        places.append("log files of the source that lie on its volumes: the snapshot does not say where")
    if scrubbed.not_emptied:
        places.append(f"free pages of {', '.join(scrubbed.not_emptied)}, which several tables share")
    others = sorted(set(engines) - _ENGINES)
    if others:
        places.append(f"files of {', '.join(others)}: masking does not know how this engine stores former rows")
    return tuple(places)


_SHORTEST = 6
"""The minimum length of an encoded value in bytes. Shorter byte sequences may occur by chance."""


@dataclass(frozen=True)
class Canary:
    """A value that no file may contain: its number in the configuration (from 1), and its encodings."""

    number: int
    forms: tuple[bytes, ...]


def canaries(values: tuple[str, ...]) -> tuple[Canary, ...]:
    """Return a canary for each value: its number, and its encodings."""
    return tuple(Canary(number, forms(value)) for number, value in enumerate(values, start=1))


def forms(value: str) -> tuple[bytes, ...]:
    """Return the bytes of the value in the character sets of columns, as a fulltext word, and in base64.

    A fulltext index stores words in lower case. MySQL writes the values of a histogram in base64 (refman 8.4,
    "Optimizer Statistics").
    """
    plain = [value.encode(), value.lower().encode(), value.encode("utf-16-be"), value.encode("utf-16-le")]
    if all(ord(character) < 256 for character in value):
        plain.append(value.encode("latin-1"))
    all_forms = [*plain, *(_in_base64(value.encode(), skipped) for skipped in range(3))]
    return tuple(dict.fromkeys(form for form in all_forms if len(form) >= _SHORTEST))


def _in_base64(text: bytes, skipped: int) -> bytes:
    """Return the base64 characters of `text` that do not depend on the `skipped` bytes before it."""
    encoded = base64.b64encode(b"\0" * skipped + text)
    return encoded[-(-skipped * 8 // 6) : (skipped + len(text)) * 8 // 6]


def longest(all_canaries: tuple[Canary, ...]) -> int:
    """Return the length in bytes of the longest encoding of any canary."""
    return max((len(form) for canary in all_canaries for form in canary.forms), default=0)


_IN_USE = timedelta(hours=1)
"""The minimum time that a set stays after its last use.

It is needed because a command that has just created or used a set may be about to clone it.
"""


class MaskingWay(StrEnum):
    """The way in which the data of a new clone is masked.

    - none: the data is not masked.
    - prepared: the set was masked earlier, when it was prepared.
    - prepares: a prepared set is created and masked now, once for all clones of it.
    - alone: only this clone is masked.
    """

    NONE = "none"
    PREPARED = "prepared"
    PREPARES = "prepares"
    ALONE = "alone"


@dataclass(frozen=True)
class MaskingChoice:
    """The way in which a new clone is masked, and the reason."""

    way: MaskingWay
    reason: str


@dataclass(frozen=True)
class MaskingCase:
    """The source and the purpose of a new clone.

    - `rules`: the digest of the masking rules that the clone needs (empty if none)
    - `source_rules`: the digest of the rules that masked the clone's source (empty if unmasked)
    - `is_stored`: whether the source is a stored backup (on this host or in the repository), not a local or live set
    - `names_latest`: whether the request is for the latest set
    - `starts`: whether the clone's server is started now
    - `is_ephemeral`: whether a command creates the clone for its own use
    - `keep_unused`: the time in seconds for which a set without clones stays after its last use
    """

    kind: SourceKind
    rules: str
    source_rules: str
    is_stored: bool
    names_latest: bool
    starts: bool
    is_ephemeral: bool
    keep_unused: float


_NOT_PREPARED = {
    SourceKind.LIVE: "its data is that of now, which no other clone asks for",
    SourceKind.POINT: "it has the data of a point, and only sets are prepared",
    SourceKind.COMMIT: "a prepared form of a commit would keep the clone that has the commit",
    SourceKind.SNAPSHOT: "a prepared form would keep the snapshots of another program",
    SourceKind.REPLACED: "a prepared form would keep the server that was replaced",
}
"""The reason why zsnapdb makes a prepared set from this kind of source only on request."""


def masking_choice(case: MaskingCase) -> MaskingChoice:
    """Return how the clone is masked.

    zsnapdb creates a prepared set only if the next clone will probably use the same set. So a user with the right to
    create clones, but without the right to prepare sets, causes at most one prepared set per new backup.
    """
    if not case.rules:
        return MaskingChoice(MaskingWay.NONE, "nothing of it is to be masked")
    if case.source_rules == case.rules:
        return MaskingChoice(MaskingWay.PREPARED, "its set was masked when it was prepared, by the rules of now")
    reason = _objection(case)
    if reason is not None:
        return MaskingChoice(MaskingWay.ALONE, reason)
    return MaskingChoice(MaskingWay.PREPARES, "its set is the newest, and was not masked by the rules of now")


def _objection(case: MaskingCase) -> str | None:
    if case.kind in _NOT_PREPARED:
        return _NOT_PREPARED[case.kind]
    if not case.starts:
        return "its server is started later, and what is masked is decided then"
    if case.is_ephemeral:
        return "a command makes it for itself, and leaves nothing"
    if not case.names_latest:
        return "only the newest set is prepared unasked; `zsnapdb clone prepare` prepares others, if they are named"
    if not case.is_stored:
        return "its set is no stored backup, and a prepared form would keep it"
    if not case.keep_unused:
        return "clones.keep_unused is 0: no form would stay"
    return None


@dataclass(frozen=True)
class UnusedSet:
    """A received or prepared set, with the number of clones that depend on it and the recorded time of its last use.

    The field `is_form` is set if the set was prepared from another set, and can be recreated from it.
    """

    clones: int
    used: str
    is_form: bool


def judge_set(item: UnusedSet, keep_unused: float, short: str, now: datetime) -> JudgedLease:
    """Return the decision of a sweep about a received or prepared set, with its reason.

    The argument `short` explains why the set's pool has too little space; it is empty if the pool has enough. If the
    pool has too little, the sweep removes a prepared set one hour after its last use, unless a clone depends on it. If
    the time of the last use is unreadable, the set stays.
    """
    if item.clones:
        return JudgedLease(LeaseVerdict.KEEP, f"{item.clones} clones depend on it")
    unused = now - read_stamp(item.used)
    if unused >= timedelta(seconds=keep_unused):
        return JudgedLease(LeaseVerdict.REAP, f"not used since {item.used}")
    if short and item.is_form and unused >= _IN_USE:
        return JudgedLease(LeaseVerdict.REAP, f"not used since {item.used}, and {short}")
    return JudgedLease(LeaseVerdict.KEEP, f"last used at {item.used}, kept {format_duration(keep_unused)} after that")
