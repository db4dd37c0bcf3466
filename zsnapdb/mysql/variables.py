"""Reads the variables of a server, and changes variables for a job's own session or for a copy of the server."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_family import family, flavour_of

STOP_LOGGING = "SET SESSION sql_log_bin = 0"
"""Statement that keeps the session's changes out of the binlog."""
BEFORE_ACCOUNTS = f"{STOP_LOGGING}/*M!, SESSION old_passwords = 0 */"
"""The first line of an init file that creates accounts. It turns old_passwords off.

With old_passwords, MariaDB would store hashes with which no login is possible.
"""


_IN_EVERY_LIST = ("datadir", "version", "wait_timeout")
"""Variables that every server has, from the middle and the end of the sorted list.

They show whether the list is complete.
"""


class ServerVariables(dict[str, str]):
    """Variables of a server by name. Access to a missing variable raises ServerError."""

    def __missing__(self, name: str) -> str:
        raise ServerError(
            f"the server did not return its variable {name}",
            hint=f"run SHOW GLOBAL VARIABLES LIKE '{name}' as zsnapdb's account; connect to the server, not to a proxy",
        )


def global_variables(session: Session, names: Sequence[str] = ()) -> dict[str, str]:
    """Return all global variables, or only the variables in `names` that the server has, by lower-case name.

    Raises ServerError if the list of all variables is incomplete. Access to a missing variable in the result also
    raises ServerError.
    """
    if not names:
        rows = session.query("SHOW GLOBAL VARIABLES")
    else:
        listing = ", ".join(f"'{name}'" for name in names)
        rows = session.query(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({listing})")
    found = ServerVariables({str(name).lower(): str(value) for name, value in rows})
    for name in () if names else _IN_EVERY_LIST:
        found[name]
    return found


def set_variables(session: Session) -> dict[str, str] | None:
    """Return the variables that differ from their compiled defaults, with the reported origin, by lower-case name.

    The result is None before MySQL 8.0, or if the account cannot read performance_schema.
    """
    try:
        rows = session.query(family(server_flavour(session)).set_variables_query)
    except ServerError:
        return None
    return {str(name).lower(): str(origin) for name, origin in rows}


def version(session: Session) -> str:
    """Return the version that the server reports."""
    return str(session.value("SELECT VERSION()"))


def server_flavour(session: Session) -> Flavour:
    """Return the family of the server."""
    return flavour_of(global_variables(session, ("version", "version_comment")))


def clock(session: Session) -> float:
    """Return the server's time in seconds since 1970."""
    return float(session.value("SELECT UNIX_TIMESTAMP()"))


def stop_logging(session: Session) -> None:
    """Keep the changes of this session out of the binlog."""
    session.query(STOP_LOGGING)


def refuse_writes_of_users(session: Session) -> None:
    """Make the server refuse writes, except by accounts with a special privilege and by replication."""
    session.query("SET GLOBAL read_only = ON")


def shut_down_slowly(session: Session) -> None:
    """Make the server complete all purges and merges in the next shutdown, so that the next start has no such work.

    See innodb_fast_shutdown in refman 8.4 and the MariaDB manual.
    """
    session.query("SET GLOBAL innodb_fast_shutdown = 0")


_NAMES = (
    "Innodb_buffer_pool_read_requests",
    "Innodb_buffer_pool_reads",
    "Innodb_buffer_pool_wait_free",
    "Innodb_buffer_pool_pages_total",
    "Innodb_buffer_pool_pages_free",
    "Innodb_data_read",
    "Innodb_data_written",
    "Innodb_page_size",
)
"""Status variables of MySQL and MariaDB. A release may lack some of these variables."""


def load_status(session: Session) -> dict[str, int]:
    """Return the server's status variables in `_NAMES`, by name. Raises ServerError if the server does not answer."""
    rows = session.query(f"SHOW GLOBAL STATUS WHERE variable_name IN ({', '.join(['%s'] * len(_NAMES))})", _NAMES)
    known = {name.lower(): name for name in _NAMES}
    return {known[str(name).lower()]: int(value) for name, value in rows if str(value).isdecimal()}
