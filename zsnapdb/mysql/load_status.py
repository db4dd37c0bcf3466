"""The status of a server that says what its load is."""

from __future__ import annotations

from zsnapdb.mysql.session import Session

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
