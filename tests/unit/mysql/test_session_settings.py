"""Each session sets what can change an answer, and proves it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import zsnapdb
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.session import (
    CHARACTERS,
    SETTINGS,
    UNLIMITED,
    Row,
    Session,
    differing,
    global_statement,
    proof_query,
    set_statement,
)
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
    for text in (set_statement(of_users=of_users), proof_query(of_users=of_users), global_statement()):
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
        with pytest.raises(ServerError, match="did not return its variable"):
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
    assert set(texts) == {
        "mysql/session.py",
        "mysql/limited_query.py",
        # It names the variable in the list of those that a copy has.
        "planning/server_copy/variables.py",
    }


def test_a_session_is_opened_in_one_place() -> None:
    """Each connection that asks for rows is opened by Session.open, which sets and proves everything."""
    used = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "zsnapdb.mysql.connection":
                used |= {(str(file.relative_to(ROOT)), name.name) for name in node.names}
    assert {file for file, name in used if name == "Connection"} == {"mysql/session.py"}


HARMLESS = {
    "its value changes the cost of a plan, not the answer": (
        r"optimizer_.* eq_range_.* range_optimizer_.* max_seeks_.* join_cache_level multi_range_count "
        r"histogram_.* use_stat_tables expensive_.* in_predicate_.* max_rowid_.* secondary_engine_.* "
        r"enable_secondary_.* low_priority_updates sql_buffer_result innodb_parallel_.* explain_.* "
        r"end_markers_in_json deadlock_.* analyze_.* mhnsw_ef_.* query_cache_.* parser_max_.* "
        r"standard_compliant_cte "
    ),
    "memory or disk of a statement, of which too little is an error": (
        r".*_(buffer|alloc_block|prealloc|chunk)_size .*buff_size max_heap_.* tmp_.* big_tables "
        r"max_tmp_.* connection_memory_limit global_connection_.* max_session_mem_.* net_buffer_length "
        r"max_allowed_packet max_length_for_sort_data join_buffer_space_limit innodb_tmpdir "
        r"max_sp_recursion_depth "
        r"max_(recursive_iterations|points_in_geometry|error_count|user_connections) thread_pool_.* "
        r"cte_max_.* innodb_ddl_threads .*repair_threads select_into_disk_.* max_relay_log_size "
        r"max_.*delayed_threads "
    ),
    "the logs of the server": (
        r"log_.* slow_query_log long_query_time min_examined_.* profiling.* sql_log_off "
        r"progress_report_time note_verbosity "
    ),
    "the protocol of the connection": (
        r"session_track_.* tcp_nodelay net_retry_count interactive_timeout mysqlx_.* redirect_url "
        r"character_set_(server|filesystem|database|collations) collation_(server|database) "
        r"default_collation_.* "
    ),
    "a limit of the site on waits, which ends a statement with an error": (
        r"(innodb_)?lock_wait_timeout innodb_table_locks innodb_snapshot_isolation wsrep_.* "
        r"group_replication_consistency "
    ),
    "the form of a change in the binlog": (
        r"binlog_.* sql_log_bin gtid_.* server_id transaction_write_.* rbr_exec_mode innodb_support_xa "
        r"xa_detach_.* sql_slave_skip_counter "
    ),
    "definitions and rows of users, which a session of zsnapdb writes with settings of its own": (
        r".*storage_engine explicit_defaults_.* "
        r"innodb_(strict_mode|compression_default|default_encryption.*|ft_.*) "
        r"sql_(generate_invisible|require)_primary_key default_table_encryption alter_algorithm "
        r"old_alter_table column_compression_.* keep_files_on_create check_constraint_checks "
        r"auto_increment_.* restrict_fk_.* system_versioning_(alter|insert)_history "
        r"enable_cascade_triggers updatable_views_.* mhnsw_default_.* "
    ),
    "functions that no statement of zsnapdb uses": (
        r"default_(week_format|regex_flags) div_precision_.* block_encryption_mode "
        r"generated_random_.* windowing_.* print_identified_.* "
    ),
    "the order of long texts, notes, and statistics": (
        r"max_sort_length sql_(notes|warnings) old new new_mode show_old_temporals "
        r"terminology_use_previous (aria|myisam)_stats_method "
    ),
    "the age of counters, which counters.py sets where it matters": (r"information_schema_stats_expiry "),
}
"""Patterns of the variables that no session sets, by the reason why they change no answer."""
RECORDED = sorted((Path(__file__).parents[1] / "recorded" / "session_variables").glob("*.txt"))
"""The variables with a session value and a global one of each server of the lab."""


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_each_variable_of_a_session_is_set_or_harmless(file: Path) -> None:
    classes = {setting.name: 1 for setting in (*SETTINGS, *CHARACTERS)}
    counted = {
        name: classes.get(name, 0)
        + sum(any(re.fullmatch(part, name) for part in patterns.split()) for patterns in HARMLESS.values())
        for name in file.read_text().split()
    }
    assert len(counted) > 100
    assert {name: count for name, count in counted.items() if count != 1} == {}


def test_each_pattern_has_a_variable() -> None:
    known = {name for file in RECORDED for name in file.read_text().split()}
    for part in " ".join(HARMLESS.values()).split():
        assert any(re.fullmatch(part, name) for name in known), part
