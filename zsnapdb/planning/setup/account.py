"""The account of zsnapdb on a server: how it logs in, and the statements that make it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zsnapdb.planning.family import family
from zsnapdb.planning.setup.facts import FoundServer

DEFAULT_USER = "zsnapdb"
SECRET_PLACE = "%s"  # noqa: S105 - a place, no password
"""Stands for the password in a statement."""
_CREATE = re.compile(r"CREATE USER (?P<name>[^ ]+) IDENTIFIED (?P<how>.+)")


@dataclass(frozen=True)
class AccountPlan:
    """The account, the statements that make it, and the file of its password (None: it logs in by the socket alone).

    Each statement can run twice. One that has SECRET_PLACE in it needs the password.
    """

    user: str
    statements: tuple[str, ...]
    password_file: str | None = None

    @property
    def shown(self) -> tuple[str, ...]:
        """The statements for people: they name the file in place of the password."""
        return tuple(
            f"{text.replace(SECRET_PLACE, f'<the password in {self.password_file}>')};" for text in self.statements
        )


def user_of(server: FoundServer) -> str:
    """Return the account that zsnapdb uses on the server: root where every server lets root in by its socket."""
    return "root" if family(server.flavour).root_uses_socket else DEFAULT_USER


def account_plan(server: FoundServer, grants: str, password_file: str) -> AccountPlan | None:
    """Return the account to be made with the statements of `grants`, None if the account is there on every server.

    The account has a password if root may look into the server and sees that nobody can log in by the socket alone.
    """
    user = user_of(server)
    if user == "root":
        return None
    needs_password = server.lets_root_in and not server.has_socket_login
    statements = tuple(_repeatable(text, needs_password) for text in _statements(grants))
    return AccountPlan(user, statements, password_file if needs_password else None)


def _statements(text: str) -> list[str]:
    """Return the statements of a text in which comments have lines of their own."""
    lines = [line for line in text.split("\n") if not line.startswith("--")]
    return [statement for part in "\n".join(lines).split(";") if (statement := " ".join(part.split()))]


def _repeatable(statement: str, needs_password: bool) -> str:
    match = _CREATE.fullmatch(statement)
    if match is None:
        return statement
    how = f"BY {SECRET_PLACE}" if needs_password else match["how"]
    return f"CREATE USER IF NOT EXISTS {match['name']} IDENTIFIED {how}"
