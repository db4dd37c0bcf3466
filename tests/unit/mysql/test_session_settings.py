"""Each session sets what can change an answer, and proves it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import zsnapdb
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import Row, Session
from zsnapdb.mysql.session_settings import SETTINGS, UNLIMITED, differing, proof_query, set_statement
from zsnapdb.mysql.variables import ServerVariables, global_variables

ROOT = Path(zsnapdb.__file__).parent


def read_by(text: str, release: int, *, is_mariadb: bool) -> str:
    """Return the text as a server of the release reads it: without the comments that it skips."""

    def kept(comment: re.Match[str]) -> str:
        of_mariadb, first = comment[1] == "M", int(comment[2])
        if of_mariadb:
            return comment[3] if is_mariadb and release >= first else ""
        is_skipped = is_mariadb and 50700 <= first <= 99999
        return "" if is_skipped or release < first else comment[3]

    return re.sub(r"/\*(M?)!(\d+) (.*?)\*/", kept, text)


def proof_row(release: int, *, is_mariadb: bool, **other: object) -> list[object]:
    """Return the row of a server of the release on which everything was set, but for `other`."""
    names = re.findall(r"@@SESSION\.(\w+)", read_by(proof_query(of_users=False), release, is_mariadb=is_mariadb))
    wanted: dict[str, object] = {setting.name: setting.value for setting in SETTINGS}
    wanted |= dict.fromkeys(("character_set_client", "character_set_connection", "character_set_results"), "utf8mb4")
    wanted |= {"collation_connection": "utf8mb4_general_ci"} | other
    return [7, *(word for name in names for word in (name, wanted[name]))]


@pytest.mark.parametrize(("release", "is_mariadb"), [(50744, False), (80046, False), (90704, False), (110800, True)])
@pytest.mark.parametrize("of_users", [True, False])
def test_a_release_reads_a_whole_statement(release: int, is_mariadb: bool, of_users: bool) -> None:
    for text in (set_statement(of_users=of_users), proof_query(of_users=of_users)):
        assert not re.search(r"[!*]|, ,|,$", read_by(text, release, is_mariadb=is_mariadb))


def test_each_release_is_told_only_what_it_knows() -> None:
    old, new = (read_by(set_statement(of_users=False), each, is_mariadb=False) for each in (50700, 90704))
    mariadb = read_by(set_statement(of_users=False), 110800, is_mariadb=True)
    assert "sql_select_limit" in old
    assert "sql_select_limit" in new
    assert "sql_select_limit" in mariadb
    assert ("transaction_isolation" in old, "transaction_isolation" in new) == (False, True)
    assert ("tx_isolation" in new, "tx_isolation" in mariadb) == (False, True)
    assert ("max_statement_time" in new, "max_execution_time" in mariadb) == (False, False)


@pytest.mark.parametrize(("release", "is_mariadb"), [(50744, False), (80046, False), (90704, False), (110800, True)])
def test_a_server_that_took_everything_differs_in_nothing(release: int, is_mariadb: bool) -> None:
    assert differing(proof_row(release, is_mariadb=is_mariadb)) == ()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_that_was_not_taken_is_named(setting: object) -> None:
    name = getattr(setting, "name", "")
    is_mariadb = getattr(setting, "mysql", None) is None
    row = proof_row(110800 if is_mariadb else 90704, is_mariadb=is_mariadb, **{name: "17x"})
    assert differing(row) == (f"{name}=17x",)


def test_times_of_mariadb_have_digits_behind_the_point() -> None:
    assert differing(proof_row(110800, is_mariadb=True, max_statement_time="0.000000")) == ()


def test_an_answer_without_the_settings_is_refused() -> None:
    assert differing(()) == ("sql_select_limit", "character_set_results")


def test_statements_of_users_keep_the_modes_of_their_server() -> None:
    text = set_statement(of_users=True)
    assert not [name for name in ("sql_mode", "time_zone", "foreign_key_checks", "COLLATE") if name in text]
    assert f"sql_select_limit = {UNLIMITED}" in text


class CutSession(Session):
    """A session whose lists end after so many rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def query(self, sql: str, parameters: object = ()) -> list[Row]:
        names = ("autocommit", "datadir", "port", "version", "wait_timeout")
        return [(name, "1") for name in names][: self.rows]


def test_a_list_of_variables_that_is_cut_is_an_error() -> None:
    assert len(global_variables(CutSession(5))) == 5
    for rows in range(5):
        with pytest.raises(ServerError, match="does not tell its variable"):
            global_variables(CutSession(rows))


def test_a_missing_variable_is_an_error_with_a_hint() -> None:
    with pytest.raises(ServerError, match="its variable version") as missing:
        ServerVariables()["version"]
    assert "SHOW GLOBAL VARIABLES LIKE 'version'" in missing.value.hint
    assert ServerVariables().get("version") is None


def test_only_limited_answers_have_a_limit() -> None:
    """A list is whole because the limit of its session was proved; nothing may set another one later."""
    texts = {
        str(file.relative_to(ROOT)): file.read_text()
        for file in ROOT.rglob("*.py")
        if "sql_select_limit" in file.read_text()
    }
    assert set(texts) == {"mysql/session_settings.py", "mysql/limited_query.py"}


def test_a_session_is_opened_in_one_place() -> None:
    """Each connection that asks for rows is opened by Session.open, which sets and proves everything."""
    used = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "zsnapdb.mysql.connection":
                used |= {(str(file.relative_to(ROOT)), name.name) for name in node.names}
    assert {file for file, name in used if name == "Connection"} == {"mysql/session.py"}
