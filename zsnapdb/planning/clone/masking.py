"""When a clone is masked, which tables masking rebuilds, and what masking cannot reach. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import Flavour
from zsnapdb.planning.clone.changed_files import Changes, TableFiles, changed
from zsnapdb.planning.engines import RowPlace
from zsnapdb.planning.family import family
from zsnapdb.planning.schema_content import CatalogueTable

SYSTEM_SCHEMAS = ("mysql", "sys", "information_schema", "performance_schema")

_LARGEST_UNDO_COUNT = 127
_LOG_SIZE_STEP = 8 << 20
_UNDO_COUNT_MAY_CHANGE = (11, 0)
"""From this release on MariaDB makes all undo tablespaces anew when their number changes after a slow shutdown.

Source: innodb_undo_tablespaces, MariaDB manual; observed with 11.8.
"""


_ENGINES = frozenset(("InnoDB", "MyISAM", "Aria", "CSV", "ARCHIVE", "MEMORY", "MRG_MyISAM", "BLACKHOLE"))
"""Engines whose files ALTER TABLE FORCE writes anew, or that have no rows of their own in files."""


def is_masked(*, required: bool, configured: bool, requested: bool) -> bool:
    """Whether a clone must be masked: masking is required or requested."""
    if requested and not configured:
        raise PreflightError(
            "the instance has no masking configured", hint="name SQL files or scripts in masking.run of the instance"
        )
    return required or requested


def dotted(table: CatalogueTable) -> str:
    """Return the name of the table as the configuration has it."""
    return f"{table.schema}.{table.name}"


def planned_lines(flavour: Flavour) -> tuple[str, ...]:
    """Return what a plan says about masking, beside the site's own files."""
    history = "drop the history of system-versioned tables, except of those in masking.keep_history"
    return (history,) if family(flavour).versions_tables else ()


def histories_to_drop(tables: Collection[CatalogueTable], keep: Collection[str]) -> list[CatalogueTable]:
    """Return the system-versioned tables whose history masking drops: all but those in `keep` (schema.table).

    A history has the rows as they were before masking, and no UPDATE changes them. PreflightError if `keep` names
    anything else than a system-versioned table.
    """
    versioned = [table for table in tables if table.is_versioned and table.schema not in SYSTEM_SCHEMAS]
    unknown = sorted(set(keep) - {dotted(table) for table in versioned})
    if unknown:
        raise PreflightError(
            f"masking.keep_history names {', '.join(unknown)}, which is no system-versioned table of the clone",
            hint="correct masking.keep_history; it takes schema.table",
        )
    return [table for table in versioned if dotted(table) not in keep]


def to_rebuild(
    tables: Collection[CatalogueTable], rebuild: str, keep_history: Collection[str], changes: Changes
) -> list[CatalogueTable]:
    """Return the tables to rebuild so that no old row stays in their free space: the changed ones, or `all`.

    The server's own tables are left alone, sequences (numbers alone) and tables whose rows are in no file too.

    PreflightError if a table was changed whose history is kept: the history then has the rows as they were.
    """
    touched = set(changed([_files(table) for table in tables], changes))
    candidates = [
        table
        for table in tables
        if table.schema not in SYSTEM_SCHEMAS and not table.is_sequence and table.row_place is RowPlace.FILES
    ]
    written = [table for table in candidates if _files(table) in touched]
    wrong = [dotted(table) for table in written if dotted(table) in keep_history]
    if wrong:
        raise PreflightError(
            f"masking changed {', '.join(wrong)}, whose history is kept: the history has the rows as they were",
            hint="remove the table from masking.keep_history: then masking drops its history",
        )
    return candidates if rebuild == "all" else written


def _files(table: CatalogueTable) -> TableFiles:
    return TableFiles(table.schema, table.name, needs_file=table.row_place is RowPlace.FILES)


def renewing_options(flavour: Flavour, release: tuple[int, ...], variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return options under which a server that was shut down cleanly makes its redo and undo files anew.

    Empty where the server does it in another way, or cannot.
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
    """What the removal of old rows reached.

    `logs_known`: the snapshot says where the source wrote its log files. `not_emptied` are tablespaces of several
    tables whose free pages were not overwritten; a rebuilt table leaves its old pages there.
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
    """Return the places where bytes of unmasked rows may still lie in the clone's files.

    What an SQL account can read is masked in any case.
    """
    places = ["the snapshot the clone was made from, which is the source's and not in the clone's folders"]
    if not scrubbed.doublewrite_emptied:
        places.append("the doublewrite buffer in the system tablespace, the last 128 pages written")
    undo_in_system = flavour is Flavour.MARIADB and (
        release < _UNDO_COUNT_MAY_CHANGE or not int(variables.get("innodb_undo_tablespaces", "0"))
    )
    if undo_in_system or (flavour is Flavour.MYSQL and not scrubbed.undo_renewed):
        places.append("undo logs: this server cannot make them anew")
    if not scrubbed.logs_known:
        places.append("log files of the source that lie on its volumes: the snapshot does not say where")
    if scrubbed.not_emptied:
        places.append(f"free pages of {', '.join(scrubbed.not_emptied)}, which several tables share")
    others = sorted(set(engines) - _ENGINES)
    if others:
        places.append(f"files of {', '.join(others)}: masking does not know how this engine stores former rows")
    return tuple(places)
