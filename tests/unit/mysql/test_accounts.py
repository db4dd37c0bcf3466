"""The accounts of a clone's users are created for every host from which they may log in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import SecretStr

from zsnapdb.base.domain_types import Flavour
from zsnapdb.jobs.clone.credentials import hosts_of_users
from zsnapdb.mysql import accounts
from zsnapdb.planning.clone.isolation import ACCOUNT, AccountRights


class FormattingSession:
    """A session that puts values into statements as the driver does: a single % is the place of a value."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        self.statements.append(sql % tuple(repr(one) for one in parameters) if parameters else sql)
        return []


@pytest.mark.parametrize("flavour", Flavour)
@pytest.mark.parametrize("rights", AccountRights)
@pytest.mark.parametrize("bind", ["127.0.0.1", "192.0.2.10", "*", "::"])
def test_users_are_created_for_each_host(bind: str, rights: AccountRights, flavour: Flavour) -> None:
    session, hosts = FormattingSession(), hosts_of_users(bind)
    accounts.make_users(session, ACCOUNT, hosts, SecretStr("p%s"), rights, flavour)  # type: ignore[arg-type]
    created = [re.fullmatch(r"CREATE USER '(.+)'@'(.+)' IDENTIFIED BY 'p%s'", one) for one in session.statements]
    assert [match.groups() for match in created if match is not None] == [(ACCOUNT, host) for host in hosts]
    assert ("%" in hosts) == (bind != "127.0.0.1")
