"""The variables of a server, and the settings that a job changes for its own session or copy."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.base.errors import ServerError
from zsnapdb.base.model import Flavour
from zsnapdb.mysql.session import Session
from zsnapdb.planning.family import family, flavour_of

STOP_LOGGING = "SET SESSION sql_log_bin = 0"
"""The statement that keeps the changes of a session out of the binlog."""
BEFORE_ACCOUNTS = f"{STOP_LOGGING}/*M!, SESSION old_passwords = 0 */"
"""Begins an init file that makes accounts: under old_passwords MariaDB stores hashes with which no client logs in."""


_IN_EVERY_LIST = ("datadir", "version", "wait_timeout")
"""Variables of every server. They stand in the middle and at the end of the list, which has an order."""


class ServerVariables(dict[str, str]):
    """Variables of a server by name. One that is needed and missing is a ServerError."""

    def __missing__(self, name: str) -> str:
        raise ServerError(
            f"the server does not tell its variable {name}",
            hint=f"run SHOW GLOBAL VARIABLES LIKE '{name}' as zsnapdb's account; connect to the server, not to a proxy",
        )


def global_variables(session: Session, names: Sequence[str] = ()) -> dict[str, str]:
    """Return the global variables by lower-case name: those in `names` that the server has, or all.

    ServerError if the list of all is not whole, and later if a variable is needed that the server does not have.
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
    """Return the variables that have no compiled default, by lower-case name, with their origin in the server's words.

    None if the server does not say it: MySQL before 8.0, or an account that may not read performance_schema.
    """
    try:
        rows = session.query(family(server_flavour(session)).set_variables_query)
    except ServerError:
        return None
    return {str(name).lower(): str(origin) for name, origin in rows}


def version(session: Session) -> str:
    """Return the server's version in its own words."""
    return str(session.value("SELECT VERSION()"))


def server_flavour(session: Session) -> Flavour:
    """Return the family the server belongs to."""
    return flavour_of(global_variables(session, ("version", "version_comment")))


def clock(session: Session) -> float:
    """Return the server's own time, in seconds since 1970."""
    return float(session.value("SELECT UNIX_TIMESTAMP()"))


def stop_logging(session: Session) -> None:
    """Keep the changes of this session out of the binlog."""
    session.query(STOP_LOGGING)


def refuse_writes_of_users(session: Session) -> None:
    """Make the server refuse writes, except of accounts with a special right and of replication."""
    session.query("SET GLOBAL read_only = ON")


def shut_down_slowly(session: Session) -> None:
    """Make the next shutdown purge and merge everything.

    The next start then has no work left (refman 8.4 and MariaDB manual, innodb_fast_shutdown).
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
"""Status variables of MySQL and MariaDB; which of them a release lacks is missing in the answer."""


def load_status(session: Session) -> dict[str, int]:
    """Return the status variables that the server has, by name. ServerError if it does not answer."""
    rows = session.query(f"SHOW GLOBAL STATUS WHERE variable_name IN ({', '.join(['%s'] * len(_NAMES))})", _NAMES)
    known = {name.lower(): name for name in _NAMES}
    return {known[str(name).lower()]: int(value) for name, value in rows if str(value).isdigit()}
