"""The privileges of the account that zsnapdb uses on a server."""

from __future__ import annotations

from collections.abc import Collection

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Session

_NO_ROLE = ("", "NONE")


def account_privileges(session: Session) -> frozenset[str] | None:
    """Return the privileges of the account on `*.*`, static and dynamic ones, in upper case.

    None if a role is active: what a role gives is in no table that every account may read (refman 8.4, "The
    INFORMATION_SCHEMA USER_PRIVILEGES Table"; MariaDB manual, "Information Schema USER_PRIVILEGES Table").
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
    """Return which privileges the account of the session lacks on the schema, granted there or on `*.*`.

    Nothing if a role is active: what a role gives is in no table that every account may read. The name of a schema in
    a grant is a pattern (refman 8.4, "GRANT Statement").
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
    """Whether a role is active. MySQL 5.7 has no roles, and does not know the function."""
    try:
        role = session.value("SELECT CURRENT_ROLE()")
    except ServerError:
        return False
    return role is not None and str(role) not in _NO_ROLE


def routine_of_another(session: Session) -> str | None:
    """Return a routine that runs with the rights of the account that made it; None if there is none.

    Whoever may call it may do what that account may (refman 8.4, "Stored Object Access Control").
    """
    rows = session.query(
        "SELECT CONCAT(routine_schema, '.', routine_name) FROM information_schema.routines"
        " WHERE security_type = 'DEFINER' AND routine_schema NOT IN ('mysql', 'sys') ORDER BY 1 LIMIT 1"
    )
    return str(rows[0][0]) if rows else None
