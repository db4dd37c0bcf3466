"""Whether a started server can read its encrypted tables."""

from __future__ import annotations

from zsnapdb.base.errors import ConsistencyError, ServerError
from zsnapdb.mysql.session import Session
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.family import family
from zsnapdb.planning.quoting import quoted

_ENCRYPTED = (
    "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
    " WHERE TABLE_TYPE = 'BASE TABLE' AND CREATE_OPTIONS LIKE '%ENCRYPTION=''Y''%' LIMIT 1"
)


def check(session: Session, facts: ServerFacts) -> None:
    """Raise ConsistencyError if the server has encrypted tables and lacks the key to them.

    One master key encrypts the keys of all tablespaces (refman 8.4, "InnoDB Data-at-Rest Encryption"), so one table is
    read for all. MySQL without its keyring starts all the same, and only who reads an encrypted table gets an error.
    MariaDB without its keys does not start.
    """
    if not family(facts.flavour).starts_without_keys:
        return
    for schema, name in session.query(_ENCRYPTED):
        table = quoted(str(schema), str(name))
        try:
            session.query(f"SELECT 1 FROM {table} LIMIT 1")
        except ServerError as error:
            raise ConsistencyError(
                f"the started copy cannot read {table}, which is encrypted: {error.message}",
                hint="give this host the keys of the source, and the server program its keyring component (mysqld.my"
                " beside the program) or plugin (server.options); name key files in server.sandbox_reads",
            ) from error
