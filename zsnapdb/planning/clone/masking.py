"""When a clone is masked, which tables masking rebuilds, and what masking cannot reach. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.errors import PreflightError
from zsnapdb.model import Flavour
from zsnapdb.planning.quoting import quoted

SYSTEM_SCHEMAS = ("mysql", "sys", "information_schema", "performance_schema")

_LARGEST_UNDO_COUNT = 127
_LOG_SIZE_STEP = 8 << 20
_UNDO_COUNT_MAY_CHANGE = (11, 0)
"""From this release on MariaDB makes all undo tablespaces anew when their number changes after a slow shutdown.

Source: innodb_undo_tablespaces, MariaDB manual; observed with 11.8.
"""


@dataclass(frozen=True)
class Table:
    """A table as information_schema has it. `changed`: written since the server started, as far as the engine knows."""

    schema: str
    name: str
    engine: str
    changed: bool

    @property
    def quoted(self) -> str:
        """Its name as a statement has it."""
        return quoted(self.schema, self.name)


def is_masked(*, required: bool, configured: bool, requested: bool, already: bool) -> bool:
    """Whether a clone is to be masked: masking is required or requested, and the source is not masked already."""
    if requested and not configured:
        raise PreflightError(
            "the instance has no masking configured", hint="name SQL files or scripts in masking.run of the instance"
        )
    return (required or requested) and not already


def to_rebuild(tables: list[Table], rebuild: str) -> list[Table]:
    """Return the tables to rebuild so that no old row stays in their free space: the changed ones, or `all`."""
    return [table for table in tables if table.schema not in SYSTEM_SCHEMAS and (rebuild == "all" or table.changed)]


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


def remains(
    flavour: Flavour,
    release: tuple[int, ...],
    variables: Mapping[str, str],
    engines: Mapping[str, int],
    *,
    undo_renewed: bool,
    logs_known: bool = True,
) -> tuple[str, ...]:
    """Return the places where bytes of unmasked rows may still lie in the clone's files.

    What an SQL account can read is masked in any case. `logs_known`: the snapshot says where the source wrote its log
    files.
    """
    places = ["the snapshot the clone was made from, which is the source's and not in the clone's folders"]
    if variables.get("innodb_file_per_table", "ON") not in ("ON", "1"):
        places.append("free pages of ibdata1: innodb_file_per_table is off")
    if flavour is Flavour.MARIADB and variables.get("innodb_doublewrite", "OFF") not in ("OFF", "0"):
        places.append("the doublewrite buffer in ibdata1, the last 128 pages written")
    undo_in_system = flavour is Flavour.MARIADB and (
        release < _UNDO_COUNT_MAY_CHANGE or not int(variables.get("innodb_undo_tablespaces", "0"))
    )
    if undo_in_system or (flavour is Flavour.MYSQL and not undo_renewed):
        places.append("undo logs: this server cannot make them anew")
    if not logs_known:
        places.append("log files of the source that lie on its volumes: the snapshot does not say where")
    if engines.get("Aria"):
        places.append("the Aria log: there are Aria tables")
    return tuple(places)
