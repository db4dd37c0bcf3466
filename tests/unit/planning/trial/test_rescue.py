"""The destination, the new name and the transport of a rescued table."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import CommandError, PreflightError, UsageError
from zsnapdb.mysql.process import programs
from zsnapdb.planning.sql_quoting import TableName, option_value, parse_table, quoted
from zsnapdb.planning.trial.rescue import (
    DumpFile,
    LiveServer,
    ServerKind,
    TableKind,
    Transport,
    choose_transport,
    event_commands,
    foreign_key_note,
    is_plain,
    loading_commands,
    new_name,
    parse_destination,
)

AS_OF = datetime(2026, 11, 21, 4, 36, 2, tzinfo=UTC)
NAME = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20
)


@given(NAME, NAME)
def test_any_name_in_backticks_is_understood(schema: str, table: str) -> None:
    if "\n" not in schema + table:
        assert parse_table(quoted(schema, table)) == TableName(schema, table)


def test_a_plain_name_needs_no_backticks() -> None:
    assert parse_table("ledger.accounts") == TableName("ledger", "accounts")
    assert parse_table("ledger.`a.b`") == TableName("ledger", "a.b")


@pytest.mark.parametrize("text", ["accounts", ".accounts", "ledger.", "`ledger.accounts", ""])
def test_what_names_no_table_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a table"):
        parse_table(text)


def test_a_destination_is_a_file_or_a_server() -> None:
    assert parse_destination("/tmp/t.sql") == DumpFile("/tmp/t.sql")
    assert parse_destination("mysql://ann@db:3307/shop") == LiveServer("ann", "db", 3307, None, "shop")
    assert parse_destination("mysql://root@localhost?socket=/run/s.sock") == LiveServer(
        "root", "localhost", 3306, "/run/s.sock", None
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mysql://ann:secret@db/shop", "contains a password"),
        ("mysql://db/shop", "names no user"),
        ("mysql://ann@db:99999/shop", "no usable port"),
        ("s3://bucket/t.sql", "cannot deliver to s3://"),
    ],
)
def test_a_destination_that_cannot_be_used_is_refused_without_repeating_a_secret(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_destination(text)
    assert "secret" not in str(caught.value)


def test_the_new_name_tells_the_time_of_the_data_and_is_never_too_long() -> None:
    assert new_name(TableName("shop", "orders"), None, None, AS_OF) == TableName("shop", "orders_20261121_043602")
    assert new_name(TableName("shop", "orders"), None, "other", AS_OF) == TableName("other", "orders_20261121_043602")
    assert new_name(TableName("shop", "orders"), "copy", "other", AS_OF) == TableName("other", "copy")
    assert new_name(TableName("shop", "orders"), "a.b", "other", AS_OF) == TableName("a", "b")
    assert new_name(TableName("shop", None), None, None, AS_OF) == TableName("shop_20261121_043602", None)
    assert new_name(TableName("shop", None), "x", None, AS_OF) == TableName("x", None)
    assert len(new_name(TableName("shop", "x" * 64), None, None, AS_OF).table or "") == 64


HERE = ServerKind(Flavour.MYSQL, "8.4.3", 16384, has_binlog=True)
QUIET = ServerKind(Flavour.MYSQL, "8.4.9", 16384, has_binlog=False)
TABLE = TableKind(TableName("zsnapdb_rescue", "t"), "InnoDB", "", has_fulltext=False, is_file_per_table=True)


def test_a_tablespace_moves_only_where_no_binlog_would_speak_of_it() -> None:
    assert choose_transport(None, TABLE, HERE, QUIET, is_local=True).transport is Transport.TABLESPACE
    loaded = choose_transport(None, TABLE, HERE, HERE, is_local=True)
    assert (loaded.transport, "binlog" in loaded.reason) == (Transport.DUMP, True)
    assert choose_transport(Transport.TABLESPACE, TABLE, HERE, HERE, is_local=True).transport is Transport.TABLESPACE
    assert choose_transport(Transport.DUMP, TABLE, HERE, QUIET, is_local=True).transport is Transport.DUMP


@pytest.mark.parametrize(
    ("table", "target", "is_local", "reason"),
    [
        (
            TableKind(TABLE.name, "MyISAM", "", has_fulltext=False, is_file_per_table=True),
            QUIET,
            True,
            "engine is MyISAM",
        ),
        (
            TableKind(TABLE.name, "InnoDB", "partitioned", has_fulltext=False, is_file_per_table=True),
            QUIET,
            True,
            "partitioned",
        ),
        (
            TableKind(TABLE.name, "InnoDB", 'ENCRYPTION="Y"', has_fulltext=False, is_file_per_table=True),
            QUIET,
            True,
            "encrypted",
        ),
        (TableKind(TABLE.name, "InnoDB", "", has_fulltext=True, is_file_per_table=True), QUIET, True, "FULLTEXT"),
        (
            TableKind(TABLE.name, "InnoDB", "", has_fulltext=False, is_file_per_table=False),
            QUIET,
            True,
            "no file of its own",
        ),
        (TABLE, QUIET, False, "not on this host"),
        (TABLE, ServerKind(Flavour.MYSQL, "9.7.4", 16384, has_binlog=False), True, "of mysql 8.4.3, not 9.7.4"),
        (TABLE, ServerKind(Flavour.MARIADB, "8.4.3", 16384, has_binlog=False), True, "of mysql"),
        (TABLE, ServerKind(Flavour.MYSQL, "8.4.3", 4096, has_binlog=False), True, "16384 bytes"),
    ],
)
def test_what_cannot_move_is_dumped_and_refused_if_asked_to_move(
    table: TableKind, target: ServerKind, is_local: bool, reason: str
) -> None:
    choice = choose_transport(None, table, HERE, target, is_local=is_local)
    assert choice.transport is Transport.DUMP
    assert reason in choice.reason
    with pytest.raises(PreflightError, match="cannot move as a tablespace"):
        choose_transport(Transport.TABLESPACE, table, HERE, target, is_local=is_local)


def test_only_names_without_other_characters_are_file_names() -> None:
    assert is_plain(TableName("a", "b_1"))
    assert not is_plain(TableName("a-b", "c"))
    assert not is_plain(TableName("a", "../c"))


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), max_size=20))
def test_a_password_comes_back_from_an_option_file_as_it_was(text: str) -> None:
    value = option_value(text)
    assert value[0] == value[-1] == '"'
    assert value[1:-1].replace("\\\\", "\0").replace('\\"', '"').replace("\0", "\\") == text


def test_a_password_with_a_line_break_is_refused() -> None:
    with pytest.raises(PreflightError, match="line break"):
        option_value("a\nb")


def test_a_pipe_is_good_only_if_both_its_ends_are(tmp_path: Path) -> None:
    programs.pipe(["sh", "-c", "echo good"], ["sh", "-c", f"cat > {tmp_path}/out"], timeout=120)
    assert (tmp_path / "out").read_text() == "good\n"
    with pytest.raises(CommandError, match="exit status 3: broken source"):
        programs.pipe(["sh", "-c", "echo broken source >&2; exit 3"], ["cat"], timeout=120)
    with pytest.raises(CommandError, match="exit status 4: broken sink"):
        programs.pipe(["sh", "-c", "yes"], ["sh", "-c", "echo broken sink >&2; exit 4"], timeout=120)
    with pytest.raises(CommandError, match="did not end within"):
        programs.pipe(["sleep", "60"], ["cat"], timeout=0.2)


@pytest.mark.parametrize("comma", ["", ","])
@pytest.mark.parametrize("key", ["orders_ibfk_1", "a`b", "of the customer"])
def test_an_omitted_foreign_key_has_the_statement_that_adds_it(key: str, comma: str) -> None:
    constraint = (
        f"CONSTRAINT {quoted(key)} FOREIGN KEY (`customer`) REFERENCES `shop`.`customers` (`id`) ON DELETE CASCADE"
    )
    definition = (
        f"CREATE TABLE `orders` (\n  `id` int,\n  KEY `customer` (`customer`),\n  {constraint}{comma}\n) ENGINE"
    )
    said = foreign_key_note(definition, key, TableName("shop", "orders"))
    assert said == f"foreign key {key}; to add it: ALTER TABLE `shop`.`orders` ADD {constraint};"
    assert foreign_key_note("CREATE TABLE `orders` ()", key, TableName("shop", "orders")) == f"foreign key {key}"


def test_a_dump_file_is_loaded_by_the_printed_commands() -> None:
    table, schema = TableName("shop", "orders"), TableName("a b", None)
    loading, _ = loading_commands(table, "mariadb", "/srv/o.sql", None)
    assert loading == ("mariadb -e 'CREATE DATABASE rescued'", "mariadb rescued < /srv/o.sql")
    loading, _ = loading_commands(schema, "mysql", "/srv/a b.sql", ("utf8mb4", "utf8mb4_bin"))
    assert loading == (
        "mysql -e 'CREATE DATABASE `a b` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin'",
        "mysql 'a b' < '/srv/a b.sql'",
    )
    assert event_commands("main", "before-0-1-7", "crm", ()) == ()
    assert event_commands("main", "before-0-1-7", "crm", ("e",))[:2] == (
        "zsnapdb clone create main --name rescued --at before-0-1-7",
        "zsnapdb clone connect rescued -e 'SHOW CREATE EVENT `crm`.`e`'",
    )
