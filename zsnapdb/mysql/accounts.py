"""Accounts on zsnapdb's own copies of a server, account privileges, and the clients of a server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import BEFORE_ACCOUNTS, global_variables, refuse_writes_of_users, stop_logging
from zsnapdb.planning.clone.isolation import AccountRights, awake_accounts_query, grants
from zsnapdb.planning.server_family import family


def owner_sql(user: str, hosts: Sequence[str], password: SecretStr, before: Sequence[str] = ()) -> str:
    """Return the text of a server's init file that creates an account with all privileges.

    The server does not write the statements of an init file to the binlog, so the GTIDs do not change. The statements
    in `before` run first.
    """
    secret = password.get_secret_value()
    lines = [f"{BEFORE_ACCOUNTS};", *before]
    for host in hosts:
        lines += [
            f"DROP USER IF EXISTS '{user}'@'{host}';",
            f"CREATE USER '{user}'@'{host}' IDENTIFIED BY '{secret}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{user}'@'{host}' WITH GRANT OPTION;",
        ]
    return "\n".join(lines) + "\n"


def make_users(
    session: Session, user: str, hosts: Sequence[str], password: SecretStr, rights: AccountRights, flavour: Flavour
) -> None:
    """Recreate the account for the users of a clone, with these privileges. The binlog does not get the statements."""
    stop_logging(session)
    shown = global_variables(session, ("partial_revokes",))
    known = {str(row[0]).upper() for row in session.query("SHOW PRIVILEGES")}
    for host in hosts:
        account = f"'{user}'@'{host}'"
        session.query(f"DROP USER IF EXISTS {account}")
        # The driver reads a single % as the start of a parameter.
        session.query(f"CREATE USER {account.replace('%', '%%')} IDENTIFIED BY %s", (password.get_secret_value(),))
        is_name = shown.get("partial_revokes") == "ON"
        for statement in grants(rights, account, flavour, known, patterns_are_names=is_name):
            session.query(statement)


def is_known(session: Session, user: str) -> bool:
    """Return whether the account `user`@localhost exists. The session's account must be able to read all accounts."""
    counted = session.query("SELECT COUNT(*) FROM mysql.user WHERE User = %s AND Host = 'localhost'", (user,))
    return any(int(row[0]) for row in counted)


def drop(session: Session, user: str) -> None:
    """Drop the account `user`@localhost."""
    session.query(f"DROP USER {user}@localhost")


def unlocked_accounts(session: Session, flavour: Flavour) -> tuple[str, ...]:
    """Return the accounts (user@host) that can log in, except the accounts that zsnapdb created for the clone."""
    return tuple(str(row[0]) for row in session.query(awake_accounts_query(flavour)))


def make_reader(session: Session, user: str, password: SecretStr) -> None:
    """Create an account that can only read data. It lacks FILE, EXECUTE and CREATE TEMPORARY TABLES."""
    session.query(f"CREATE USER {user}@localhost IDENTIFIED BY %s", (password.get_secret_value(),))
    session.query(f"GRANT SELECT, SHOW VIEW ON *.* TO {user}@localhost")
    refuse_writes_of_users(session)


def make_replicator(session: Session, user: str, password: SecretStr) -> None:
    """Create the account of a replica. It can log in only from this host.

    The statements are not written to the binlog.
    """
    stop_logging(session)
    for host in ("localhost", "127.0.0.1"):
        session.query(f"CREATE USER '{user}'@'{host}' IDENTIFIED BY %s", (password.get_secret_value(),))
        session.query(f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'{host}'")


def read_only_transaction(session: Session, flavour: Flavour) -> None:
    """Make the session read-only, with one consistent view of the data."""
    if family(flavour).limits_statements:
        # If the client disconnects, its statement runs until the clone ends. The server's configured time limit must
        # not end the statement earlier.
        session.query("SET SESSION max_statement_time = 0")
    session.query("SET SESSION TRANSACTION READ ONLY")
    session.query("START TRANSACTION READ ONLY")


def run_statements(session: Session, statements: Sequence[str], password: SecretStr | None) -> None:
    """Run the statements that create an account. `%s` in a statement stands for the password."""
    for statement in statements:
        secret = (password.get_secret_value(),) if password is not None and "%s" in statement else ()
        session.query(statement, secret)


_NO_ROLE = ("", "NONE")


def account_privileges(session: Session) -> frozenset[str] | None:
    """Return the account's static and dynamic privileges on `*.*`, in upper case.

    The result is None if a role is active. An ordinary account can read no table that lists a role's privileges (refman
    8.4, "The INFORMATION_SCHEMA USER_PRIVILEGES Table"; MariaDB manual, "Information Schema USER_PRIVILEGES Table").
    """
    if _has_role(session):
        return None
    rows = session.query(
        "SELECT privilege_type FROM information_schema.user_privileges WHERE REPLACE(grantee, CHAR(39), '') ="
        " CURRENT_USER()"
    )
    return frozenset(str(row[0]).upper() for row in rows)


def current_account(session: Session) -> str:
    """Return the account of the session, as `user@host`."""
    return str(session.value("SELECT CURRENT_USER()"))


def lacking_on(session: Session, schema: str, needed: Collection[str]) -> list[str]:
    """Return the `needed` privileges that the session's account lacks on the schema and on `*.*`.

    If a role is active, the result is empty, because an ordinary account cannot read the privileges of a role. The
    schema name in a grant is a pattern (refman 8.4, "GRANT Statement").
    """
    everywhere = account_privileges(session)
    if everywhere is None:
        return []
    rows = session.query(
        "SELECT privilege_type FROM information_schema.schema_privileges WHERE REPLACE(grantee, CHAR(39), '') ="
        " CURRENT_USER() AND %s LIKE table_schema",
        (schema,),
    )
    held = everywhere | {str(row[0]).upper() for row in rows}
    return sorted(set(needed) - held)


def _has_role(session: Session) -> bool:
    """Return whether a role is active. MySQL 5.7 has no roles and no SQL function CURRENT_ROLE."""
    try:
        role = session.value("SELECT CURRENT_ROLE()")
    except ServerError:
        return False
    return role is not None and str(role) not in _NO_ROLE


def routine_of_another(session: Session) -> str | None:
    """Return a routine that runs with the privileges of another account; None if no such routine exists.

    The other account is the definer of the routine. Callers of the routine can do everything that the definer can
    (refman 8.4, "Stored Object Access Control").
    """
    rows = session.query(
        "SELECT CONCAT(routine_schema, '.', routine_name) FROM information_schema.routines"
        " WHERE security_type = 'DEFINER' AND routine_schema NOT IN ('mysql', 'sys') ORDER BY 1 LIMIT 1"
    )
    return str(rows[0][0]) if rows else None


_OTHERS = (
    "FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
    " AND user NOT IN ('system user', 'event_scheduler', 'unauthenticated user')"
)
_ENDING_SECONDS = 3.0
"""Seconds within which killed sessions must roll back."""


@dataclass(frozen=True)
class ServerUse:
    """The current number of other clients, and the number of connections since the server was started."""

    clients: int
    connections: int


def server_use(session: Session) -> ServerUse:
    """Return the number of clients and the number of connections. The server's own threads are not counted."""
    clients = int(session.value(f"SELECT COUNT(*) {_OTHERS}"))
    ((_, connections),) = session.query("SHOW GLOBAL STATUS LIKE 'Connections'")
    return ServerUse(clients, int(connections))


def end_others(session: Session, user: str | None = None) -> None:
    """End the sessions of all other clients, or only of `user`. The server rolls back their uncommitted changes.

    Raises ServerError if a session has not ended after 3 s.
    """
    query, values = (f"SELECT id {_OTHERS}", ()) if user is None else (f"SELECT id {_OTHERS} AND user = %s", (user,))
    deadline = time.monotonic() + _ENDING_SECONDS
    while others := session.query(query, values):
        if time.monotonic() > deadline:
            raise ServerError(
                f"{len(others)} sessions do not end", hint="they may roll back large transactions", about=()
            )
        for (number,) in others:
            # The session may have just ended.
            with contextlib.suppress(ServerError):
                session.query(f"KILL {int(number)}")
        time.sleep(0.01)


def wait_briefly_for_locks(session: Session, seconds: int) -> None:
    """Limit the session's waits for row and table locks. After `seconds`, a waiting statement raises ServerError."""
    for name in ("innodb_lock_wait_timeout", "lock_wait_timeout"):
        session.query(f"SET SESSION {name} = {seconds}")


def has_prepared_transactions(session: Session) -> bool:
    """Return whether an XA transaction is prepared. A prepared transaction holds its locks even without a session."""
    return bool(session.query("XA RECOVER"))
