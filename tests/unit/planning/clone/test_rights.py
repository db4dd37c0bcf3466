"""The rights of the users of a clone: everything in schemas, nothing of the server."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.clone.isolation import AccountRights, grants

ACCOUNT = "'zsnapdb_clone'@'localhost'"
OF_THE_SERVER = (
    "FILE",
    "SUPER",
    "SHUTDOWN",
    "CREATE USER",
    "GRANT OPTION",
    "_ADMIN",
    "SLAVE ADMIN",
    "REPLICATION SLAVE ON",
)


@pytest.mark.parametrize("patterns_are_names", [False, True])
@pytest.mark.parametrize("flavour", list(Flavour))
def test_users_of_a_clone_get_no_privilege_of_the_server(flavour: Flavour, patterns_are_names: bool) -> None:
    given = grants(AccountRights.SCHEMAS, ACCOUNT, flavour, patterns_are_names=patterns_are_names)
    assert not any(name in statement for name in OF_THE_SERVER for statement in given)
    assert not any("ALL PRIVILEGES ON *.*" in statement for statement in given)


@pytest.mark.parametrize("flavour", list(Flavour))
def test_the_schemas_of_the_server_have_entries_of_their_own(flavour: Flavour) -> None:
    """The most specific entry counts alone: without one the entry for every schema would count."""
    given = grants(AccountRights.SCHEMAS, ACCOUNT, flavour, patterns_are_names=False)
    assert f"GRANT ALL PRIVILEGES ON `%`.* TO {ACCOUNT}" in given
    assert f"GRANT LOCK TABLES ON mysql.* TO {ACCOUNT}" in given
    assert f"GRANT SELECT, EXECUTE, SHOW VIEW ON sys.* TO {ACCOUNT}" in given


def test_the_definition_of_routines_is_shown_where_the_server_has_a_privilege_for_it() -> None:
    (newer, *_) = grants(AccountRights.SCHEMAS, ACCOUNT, Flavour.MYSQL, {"SHOW_ROUTINE"}, patterns_are_names=False)
    (older, *_) = grants(AccountRights.SCHEMAS, ACCOUNT, Flavour.MYSQL, {"SELECT"}, patterns_are_names=False)
    assert newer == older.replace(" ON *.*", ", SHOW_ROUTINE ON *.*")


def test_where_the_server_takes_patterns_for_names_the_rights_on_its_schemas_are_revoked() -> None:
    given = grants(AccountRights.SCHEMAS, ACCOUNT, Flavour.MYSQL, patterns_are_names=True)
    assert not any("%" in statement for statement in given)
    revoked = [statement.partition(" ON ")[2] for statement in given if statement.startswith("REVOKE SELECT, INSERT")]
    assert revoked == [f"mysql.* FROM {ACCOUNT}", f"sys.* FROM {ACCOUNT}"]


def test_an_administrator_of_a_clone_gets_every_privilege() -> None:
    given = grants(AccountRights.ALL, ACCOUNT, Flavour.MYSQL, patterns_are_names=False)
    assert given == (f"GRANT ALL PRIVILEGES ON *.* TO {ACCOUNT} WITH GRANT OPTION",)
