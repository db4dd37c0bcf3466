"""A copy gets the settings of its source, and no recorded value becomes another option or a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.recorded_variables import all_variables
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.replication.replay import ACCEPTING
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap, ServerIdentity, option_file
from zsnapdb.planning.server_copy.source_facts import LONGEST_LINE, kept_lines, kept_statements, left_out, notes_on
from zsnapdb.planning.server_copy.variables import VariableClass, class_of

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "s": " ", '"': '"', "'": "'", "\\": "\\"}


def read_option(line: str) -> tuple[str, str]:
    """Return name and value as a server reads them from its option file (mysys/my_default.c, both families)."""
    end, quote, escape = len(line), "", False
    for at, letter in enumerate(line):
        if letter in "'\"" and not escape:
            quote = letter if not quote else "" if quote == letter else quote
        if not quote and letter == "#":
            end = at
            break
        escape = bool(quote) and letter == "\\" and not escape
    name, _, value = line[:end].partition("=")
    value = value.strip(" \t")
    if len(value) > 1 and value[0] in "'\"" and value[0] == value[-1]:
        value = value[1:-1]
    read, at = "", 0
    while at < len(value):
        if value[at] == "\\" and at + 1 < len(value):
            at += 1
            read += ESCAPES.get(value[at], "\\" + value[at])
        else:
            read += value[at]
        at += 1
    return name.removeprefix("loose_"), read


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=200))
def test_a_server_reads_the_text_that_was_recorded(text: str) -> None:
    (line,) = kept_lines(Flavour.MYSQL, {"init_connect": text}) or ("init_connect=",)
    if "\n" not in line:
        assert read_option(line) == ("init_connect", text)


@given(st.sampled_from(sorted(all_variables())), st.text(max_size=60), st.sampled_from(list(Flavour)))
def test_a_line_is_one_option_of_its_variable_and_no_path(name: str, value: str, flavour: Flavour) -> None:
    try:
        lines = kept_lines(flavour, {name: value})
    except PreflightError:
        return
    for line in lines:
        assert line.isprintable() or "\n" not in line
        assert len(line.encode()) <= LONGEST_LINE
        assert not line.startswith(("!", "[", "#"))
        read_name, read_value = read_option(line)
        assert read_name in {
            name,
            "default_time_zone",
            "transaction_isolation",
            "default_storage_engine",
            "ignore_db_dir",
        }
        assert not read_value.startswith(("/", "..")) or class_of(name) is VariableClass.KEPT


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("innodb_strict_mode", "OFF", "loose_innodb_strict_mode=OFF"),
        ("default_storage_engine", "MyISAM", "loose_default_storage_engine=MyISAM"),
        ("time_zone", "+05:00", "loose_default_time_zone=+05:00"),
        ("time_zone", "Europe/Berlin", 'loose_default_time_zone="Europe/Berlin"'),
        ("tx_isolation", "READ-COMMITTED", "loose_transaction_isolation=READ-COMMITTED"),
        ("sql_mode", "", "sql_mode="),
        ("ft_boolean_syntax", '+ -><()~*:""&|', 'loose_ft_boolean_syntax="+ -><()~*:\\"\\"&|"'),
        ("character_set_collations", "utf8mb4=utf8mb4_bin", "loose_character_set_collations=utf8mb4=utf8mb4_bin"),
        ("variable_of_a_later_release", "ON", "loose_variable_of_a_later_release=ON"),
        ("validate_password.length", "12", "loose_validate_password.length=12"),
    ],
)
def test_a_setting_becomes_this_line(name: str, value: str, line: str) -> None:
    assert kept_lines(Flavour.MYSQL, {name: value}) == (line,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("default_storage_engine", "/etc/passwd"),
        ("time_zone", "../../etc/passwd"),
        ("innodb_ft_user_stopword_table", "../x/y"),
        ("variable_of_a_later_release", "/var/lib/mysql/x"),
        ("default_storage_engine", "InnoDB # x"),
        ("init_connect", "SET @a = 1\nskip_grant_tables"),
        ("init_connect", "x" * LONGEST_LINE),
    ],
)
def test_a_value_that_cannot_be_given_is_left_out_with_a_reason(name: str, value: str) -> None:
    assert kept_lines(Flavour.MYSQL, {name: value}) == ()
    assert [out.name for out in left_out({name: value})] == [name]


def test_settings_without_an_option_become_statements() -> None:
    variables = {"foreign_key_checks": "OFF", "sql_select_limit": "100", "unique_checks": "OFF'; DROP TABLE t; --"}
    assert kept_statements(variables) == (
        "SET GLOBAL foreign_key_checks = 'OFF';",
        "SET GLOBAL sql_select_limit = 100;",
    )
    assert kept_lines(Flavour.MARIADB, variables) == ()


def test_encryption_is_kept_if_the_keys_are_given() -> None:
    variables = {"innodb_encrypt_tables": "ON", "file_key_management_filename": "/etc/mysql/keys"}
    options = ["plugin_load_add=file_key_management", "file_key_management_filename=/etc/mysql/keys"]
    assert kept_lines(Flavour.MARIADB, variables) == ()
    assert kept_lines(Flavour.MARIADB, variables, options) == ("loose_innodb_encrypt_tables=ON",)
    assert [out.name for out in left_out(variables)] == ["file_key_management_filename", "innodb_encrypt_tables"]


def test_left_out_settings_have_their_reason_and_facts_are_none() -> None:
    variables = {"port": "3307", "version": "9.7.4", "innodb_strict_mode": "OFF", "general_log": "ON"}
    assert {out.name: out.reason for out in left_out(variables)} == {
        "port": VariableClass.NETWORK.value,
        "general_log": VariableClass.LOGGING.value,
    }


def test_a_plan_names_what_a_copy_lacks_once_for_each_reason() -> None:
    variables = {
        "datadir": "/d",
        "port": "3307",
        "bind_address": "*",
        "general_log": "ON",
        "long_query_time": "1",
        "max_connections": "7",
        "sort_buffer_size": "65536",
    }
    logs, memory = notes_on(variables, ["long-query-time=2"], ("UTC",))
    assert memory == f"not from the source: max_connections, sort_buffer_size ({VariableClass.MEMORY.value})"
    assert logs == f"not from the source: general_log ({VariableClass.LOGGING.value})"


@pytest.mark.parametrize(
    ("recorded", "zones", "is_told"),
    [
        ({"time_zone": "SYSTEM", "system_time_zone": "CEST"}, ("UTC", "UTC"), True),
        ({"time_zone": "SYSTEM", "system_time_zone": "CEST"}, ("CET", "CEST"), False),
        ({"time_zone": "+02:00", "system_time_zone": "CEST"}, ("UTC", "UTC"), False),
        ({"time_zone": "SYSTEM"}, ("UTC", "UTC"), False),
    ],
)
def test_a_plan_tells_that_local_times_would_differ(
    recorded: dict[str, str], zones: tuple[str, ...], is_told: bool
) -> None:
    told = [note for note in notes_on(recorded, (), zones) if "zone CEST" in note]
    assert bool(told) is is_told


def test_what_a_copy_must_not_do_comes_after_the_settings() -> None:
    identity = ServerIdentity(4711, None, "/c/.zsnapdb", "mysql", LoginAccess.ACCOUNTS)
    variables = {"datadir": "/d", "max_sort_length": "77", "sync_binlog": "0", "event_scheduler": "ON", "port": "1"}
    paths = PathMap((("/d", "/c"),))
    lines = option_file(Flavour.MYSQL, variables, paths, identity, ["max_sort_length=99"], ACCEPTING).splitlines()
    assert lines.index("loose_max_sort_length=77") < lines.index("max_sort_length=99") < lines.index("datadir=/c")
    assert lines[-len(ACCEPTING) :] == list(ACCEPTING)
    assert not {"event_scheduler=ON", "loose_event_scheduler=ON", "loose_port=1", "port=1"} & set(lines)
