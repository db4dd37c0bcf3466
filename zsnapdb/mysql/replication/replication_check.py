"""Check that replicas follow their source: a row written to the source must arrive at the replica."""

from __future__ import annotations

from zsnapdb.mysql.probe import flavour_and_dialect
from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_family import family

_SCHEMA = "zsnapdb_set_check"


def write_row(source: Session, token: str) -> None:
    """Write a row with the token to a new table of the source."""
    source.query(f"CREATE DATABASE {_SCHEMA}")
    source.query(f"CREATE TABLE {_SCHEMA}.arrival (token CHAR(16) PRIMARY KEY)")
    source.query(f"INSERT INTO {_SCHEMA}.arrival VALUES (%s)", (token,))


def rows(replica: Session) -> list[str]:
    """Return the tokens that arrived at the replica."""
    return [str(row[0]) for row in replica.query(f"SELECT token FROM {_SCHEMA}.arrival")]


def remove_rows(source: Session) -> None:
    """Remove the table. Replication removes it on the replicas."""
    source.query(f"DROP DATABASE {_SCHEMA}")


def reached(source: Session) -> str:
    """Return the current GTIDs of the source."""
    flavour, _ = flavour_and_dialect(source)
    return str(source.value(f"SELECT @@GLOBAL.{family(flavour).executed_variable}"))


def has_reached(replica: Session, gtids: str, seconds: float) -> bool:
    """Wait until the replica has applied the GTIDs. Return False if `seconds` pass before."""
    flavour, _ = flavour_and_dialect(replica)
    return replica.query(f"SELECT {family(flavour).wait_function}(%s, %s)", (gtids, seconds)) == [(0,)]


def errors(replica: Session) -> list[str]:
    """Return the replication errors of the replica."""
    _, dialect = flavour_and_dialect(replica)
    return [
        str(row[key])
        for row in replica.records(dialect.channels)
        for key in ("Last_IO_Error", "Last_SQL_Error")
        if row.get(key)
    ]
