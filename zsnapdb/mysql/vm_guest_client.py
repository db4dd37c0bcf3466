r"""Queries to a server in a guest through the server's command-line client, and parsers for the client's output.

The client runs with --batch and --skip-column-names. It prints one line for each row, with tabs between columns. A
backslash in a value starts an escape: \\ is a backslash, \n a line break, \t a tab and \0 a NUL (refman 8.4, "mysql
Client Options", --batch). The guest is untrusted, so the format of each answer is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.errors import DamagedError
from zsnapdb.base.gtid import Gtids
from zsnapdb.base.patterns import BINLOG, is_line
from zsnapdb.mysql.schema.schema_catalogue import STORED_TABLES, table_of
from zsnapdb.planning.schema_content import CatalogueTable
from zsnapdb.planning.server_family import family, flavour_of
from zsnapdb.planning.trial.drill import GuestServerAnswer

CLIENT_OPTIONS = ("--batch", "--skip-column-names")
_NAMES = ("version", "version_comment", "server_uuid", "server_id", "log_bin", "gtid_mode")
VARIABLES = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({', '.join(repr(name) for name in _NAMES)});\n"
BINLOGS = "SHOW BINARY LOGS;\n"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CHARACTERS = {"n": "\n", "t": "\t", "0": "\0"}
_BINLOG = re.compile(BINLOG)
_NUMBER = re.compile(r"[0-9]{1,18}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST_WORD = 200
_MOST_LOGS = 100_000
TABLES_AT_ONCE = 10_000
"""Maximum number of tables per query.

The guest agent's answer with this many tables is about 1 MB long, and libvirt accepts at most 10 MiB.
"""
# Event types at the start of a binlog that contain the GTIDs of all earlier binlogs.
_LISTING = ("Gtid_list", "Previous_gtids")
_UNKNOWN_SERVER = re.compile(r"ERROR (?:2002|2003|2006|2013|1040|1053)\b")
"""Client errors while the server is not up: no socket, no connection, too many connections, shutdown (MySQL error
reference).
"""

Rows = Sequence[Sequence[str | None]]


def rows(text: str) -> Rows:
    """Return the rows that the client printed. NULL becomes None.

    The text "NULL" also becomes None, because the client prints the value and the text in the same way.
    """
    return [[_value(field) for field in line.split("\t")] for line in text.split("\n") if line]


def _value(field: str) -> str | None:
    return None if field == "NULL" else _ESCAPED.sub(lambda match: _CHARACTERS.get(match[1], match[1]), field)


def is_not_up(errors: str) -> bool:
    """Return whether the client failed because the server is not up yet."""
    return _UNKNOWN_SERVER.search(errors) is not None


def question(sql: str) -> str:
    """Return the client's stdin for one statement."""
    return f"{sql.strip().rstrip(';')};\n"


def variables(answer: Rows) -> Mapping[str, str]:
    """Return the variables in the answer to the query VARIABLES. Raises DamagedError if the answer has no version."""
    values = {row[0].lower(): row[1] for row in answer if len(row) == 2 and row[0] and row[1] is not None}
    known = {name: values[name] for name in _NAMES if name in values}
    if not known.get("version") or not all(is_line(v) and len(v) <= _LONGEST_WORD for v in known.values()):
        raise _strange("its variables")
    return known


def has_binlog(known: Mapping[str, str]) -> bool:
    """Return whether the server writes a binlog."""
    return known.get("log_bin", "").upper() in ("ON", "1")


def binlogs(answer: Rows) -> tuple[tuple[str, int], ...]:
    """Return the names and sizes (bytes) of the binlogs, oldest first. Raises DamagedError for a malformed answer."""
    listed = [(row[0] or "", row[1] or "") for row in answer if len(row) >= 2]
    if len(listed) != len(answer) or not 0 < len(listed) <= _MOST_LOGS:
        raise _strange("its binlogs")
    if not all(_BINLOG.fullmatch(name) and _NUMBER.fullmatch(size) for name, size in listed):
        raise _strange("its binlogs")
    return tuple((name, int(size)) for name, size in listed)


def beginning(binlog: str) -> str:
    """Return the query for the first events of a binlog. Raises DamagedError if the binlog's name is invalid."""
    if not _BINLOG.fullmatch(binlog):
        raise _strange("its binlogs")
    return f"SHOW BINLOG EVENTS IN '{binlog}' LIMIT 4;\n"


def recovered(flavour: Flavour, answer: Rows) -> Gtids | None:
    """Return the GTIDs of all earlier binlogs from the answer to the query `beginning`; None if it has no GTIDs."""
    for row in answer:
        if len(row) == 6 and row[2] in _LISTING:
            text = (row[5] or "").strip().removeprefix("[").removesuffix("]")
            return _gtids(flavour, text)
    return None


def executed(flavour: Flavour) -> str:
    """Return the query for the GTIDs that all binlogs currently contain."""
    return f"SELECT @@GLOBAL.{family(flavour).executed_variable};\n"


def gtids_now(flavour: Flavour, answer: Rows) -> Gtids | None:
    """Return the GTIDs in the answer to the query of `executed`."""
    if [len(row) for row in answer] not in ([1], []):
        raise _strange("its GTIDs")
    return _gtids(flavour, (answer[0][0] or "") if answer else "")


def tables_from(number: int) -> str:
    """Return the query for at most TABLES_AT_ONCE tables, starting with the table of this number."""
    return f"{STORED_TABLES} LIMIT {TABLES_AT_ONCE} OFFSET {number};\n"


def tables(answer: Rows) -> list[CatalogueTable]:
    """Return the tables in the answer to the query STORED_TABLES. Raises DamagedError if a row is malformed."""
    listed = []
    for row in answer:
        is_table = len(row) == 6 and row[0] and row[1] and row[2] and _NUMBER.fullmatch(row[5] or "")
        if not is_table or not is_line(f"{row[0]}{row[1]}"):
            raise _strange("its tables")
        listed.append(table_of(tuple(row)))
    return listed


def check_of(chosen: Sequence[CatalogueTable]) -> str:
    """Return the statement that checks these tables."""
    return f"CHECK TABLE {', '.join(table.quoted for table in chosen)};\n"


def check_results(chosen: Sequence[CatalogueTable], answer: Rows) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of the answer to `check_of`, by quoted table name.

    If the answer has no row for a table, its list is empty.
    """
    by_name: dict[str, list[tuple[str, ...]]] = {f"{table.schema}.{table.name}": [] for table in chosen}
    for row in answer:
        if len(row) == 4 and row[0] in by_name:
            by_name[row[0]].append(tuple(field or "" for field in row))
    return {table.quoted: by_name[f"{table.schema}.{table.name}"] for table in chosen}


def answered(
    known: Mapping[str, str], logs: tuple[tuple[str, int], ...], listed: Gtids | None, now: Gtids | None
) -> GuestServerAnswer:
    """Return all answers of the server as one object. Raises DamagedError if the server's identity is malformed."""
    number, uuid = known.get("server_id", "0"), known.get("server_uuid", "").lower() or None
    if not _NUMBER.fullmatch(number) or (uuid is not None and not _UUID.fullmatch(uuid)):
        raise _strange("its identity")
    return GuestServerAnswer(flavour_of(known), known["version"], uuid, int(number), logs, listed, now)


def _gtids(flavour: Flavour, text: str) -> Gtids:
    try:
        return parse_gtids(flavour, text)
    except ValueError as error:
        raise _strange("its GTIDs") from error


def _strange(what: str) -> DamagedError:
    return DamagedError(
        f"the client in the guest gave an answer about {what} that cannot be read",
        hint="see the setting client: it must name the server's own command-line client",
    )
