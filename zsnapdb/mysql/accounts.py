"""The accounts that zsnapdb creates on its own copies, and their rights."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import SecretStr

from zsnapdb.base.model import Flavour
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import STOP_LOGGING, global_variables, refuse_writes_of_users, stop_logging
from zsnapdb.planning.clone.contract import awake_accounts_query
from zsnapdb.planning.clone.rights import AccountRights, grants
from zsnapdb.planning.family import family


def owner_sql(user: str, hosts: Sequence[str], password: SecretStr, before: Sequence[str] = ()) -> str:
    """Return the text of an init file that creates an account with all privileges.

    The statements are not written to the binlog, so the GTIDs of the server do not change. `before` are statements to
    run first.
    """
    secret = password.get_secret_value()
    lines = [f"{STOP_LOGGING};", *before]
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
    """Create the account of a clone's users anew, with these rights. The statements are not written to the binlog."""
    stop_logging(session)
    shown = global_variables(session, ("partial_revokes",))
    known = {str(row[0]).upper() for row in session.query("SHOW PRIVILEGES")}
    for host in hosts:
        account = f"'{user}'@'{host}'"
        session.query(f"DROP USER IF EXISTS {account}")
        session.query(f"CREATE USER {account} IDENTIFIED BY %s", (password.get_secret_value(),))
        is_name = shown.get("partial_revokes") == "ON"
        for statement in grants(rights, account, flavour, known, patterns_are_names=is_name):
            session.query(statement)


def drop(session: Session, user: str) -> None:
    """Drop the account `user`@localhost."""
    session.query(f"DROP USER {user}@localhost")


def awake(session: Session, flavour: Flavour) -> tuple[str, ...]:
    """Return the accounts (user@host) that can log in, without those of the clone itself."""
    return tuple(str(row[0]) for row in session.query(awake_accounts_query(flavour)))


def make_reader(session: Session, user: str, password: SecretStr) -> None:
    """Create an account that can only read, and read everything: no FILE, EXECUTE or temporary tables."""
    session.query(f"CREATE USER {user}@localhost IDENTIFIED BY %s", (password.get_secret_value(),))
    session.query(f"GRANT SELECT, SHOW VIEW ON *.* TO {user}@localhost")
    refuse_writes_of_users(session)


def make_replicator(session: Session, user: str, password: SecretStr) -> None:
    """Create the account of a replica, for this host only. The statements are not written to the binlog."""
    stop_logging(session)
    for host in ("localhost", "127.0.0.1"):
        session.query(f"CREATE USER '{user}'@'{host}' IDENTIFIED BY %s", (password.get_secret_value(),))
        session.query(f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'{host}'")


def read_only_transaction(session: Session, flavour: Flavour) -> None:
    """Make the session read only, with one consistent view of the data."""
    if family(flavour).limits_statements:
        # The end of the clone ends an abandoned statement; the site's default limit must not end it earlier.
        session.query("SET SESSION max_statement_time = 0")
    session.query("SET SESSION TRANSACTION READ ONLY")
    session.query("START TRANSACTION READ ONLY")


def run_statements(session: Session, statements: Sequence[str], password: SecretStr | None) -> None:
    """Run the statements that make an account. `%s` in one stands for the password."""
    for statement in statements:
        secret = (password.get_secret_value(),) if password is not None and "%s" in statement else ()
        session.query(statement, secret)
