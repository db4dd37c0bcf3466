"""`zsnapdb undo --apply`: undoes a transaction on the server itself, after the same statements passed on a clone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.errors import PreflightError, ServerError
from zsnapdb.jobs.binlog.undo import Undo
from zsnapdb.jobs.instance import Instance
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables
from zsnapdb.planning.binlog import undo as planning
from zsnapdb.text_files import password_in

_LONGEST_SECONDS = 86400.0
_READ_ONLY = ("read_only", "super_read_only")


@dataclass(frozen=True)
class WritingAccount:
    """An account of the server that may change the rows: that of the instance may not. `password_file`: None if none.

    It logs in where the instance's own account does.
    """

    user: str
    password_file: Path | None = None


def check(instance: Instance, undone: Undo, account: WritingAccount) -> None:
    """Raise PreflightError if a row was changed since, or if the server is read-only. Nothing is changed.

    A replica that is changed by itself has another history than its source.
    """
    if undone.conflicts:
        raise PreflightError(
            f"{len(undone.conflicts)} rows were changed since transaction {undone.gtid}, the first in"
            f" {undone.conflicts[0].change.shape.name}",
            hint="`zsnapdb undo` without --apply shows them; nothing was changed",
        )
    with _session(instance, account) as session:
        seen = global_variables(session, _READ_ONLY)
    closed = [name for name in _READ_ONLY if seen.get(name, "OFF") not in ("OFF", "0")]
    if closed:
        raise PreflightError(
            f"the server of {instance.name} has {closed[0]} = {seen[closed[0]]}",
            hint="undo the transaction on its source, where the binlogs have it too",
        )


def apply(instance: Instance, undone: Undo, account: WritingAccount) -> Undo:
    """Undo the transaction on the server, in one transaction: all its rows, or none if one was changed since.

    PreflightError if nothing was undone.
    """
    try:
        with _session(instance, account) as session:
            for statement in undone.statements:
                session.query(statement)
    except ServerError as error:
        if not _is_undone(instance, undone):
            raise PreflightError(
                f"nothing was undone: {error.message}",
                hint="a row was changed since, the account may not change it, or another session kept it locked",
            ) from error
        # The connection was lost after the commit.
    return replace(undone, is_applied=True)


def _session(instance: Instance, account: WritingAccount) -> Session:
    file = account.password_file
    password = SecretStr("") if file is None else password_in(file, "the password file of the account")
    return Session.open(replace(instance.address, user=account.user), password, read_timeout=_LONGEST_SECONDS)


def _is_undone(instance: Instance, undone: Undo) -> bool:
    """Whether every row is as before the transaction."""
    with instance.session() as session:
        for statement in planning.SESSION:
            session.query(statement)
        return all(bool(session.query(one.question)) is not one.is_absent for one in undone.questions)
