"""A dump holds everything of a schema that a dump can hold, and the rest is named."""

from __future__ import annotations

from zsnapdb.planning.schema_content import CatalogueTable, SchemaContent, SequenceDefault, TableType
from zsnapdb.planning.trial.rescue import DumpScope, dump_of_schema, dump_of_table, objection_to_history


def table(name: str, kind: TableType = TableType.BASE, engine: str | None = "InnoDB") -> CatalogueTable:
    return CatalogueTable("zoo", name, kind, engine, "", 0)


PLAIN = (table("animals"), table("seen", TableType.VIEW, None))
VERSIONED = table("cages", TableType.SYSTEM_VERSIONED)
BY_TRANSACTION = table("doors", TableType.SYSTEM_VERSIONED)
SEQUENCE = table("next", TableType.SEQUENCE)


def schema(*tables: CatalogueTable, by_transaction: tuple[str, ...] = ()) -> SchemaContent:
    return SchemaContent("zoo", "utf8mb4", "utf8mb4_bin", tables, frozenset(by_transaction))


def test_a_schema_without_versioned_tables_is_dumped_in_one_run() -> None:
    everything = dump_of_schema(schema(*PLAIN), DumpScope.EVERYTHING, None)
    assert everything.runs == (("--triggers", "--routines", "--events", "--", "zoo"),)
    tables = dump_of_schema(schema(*PLAIN), DumpScope.TABLES, None)
    assert tables.runs == (("--skip-triggers", "--skip-add-locks", "--ignore-table=zoo.seen", "--", "zoo"),)
    assert everything.left_out == tables.left_out == ()


def test_old_versions_of_rows_are_dumped_and_sequences_are_no_views() -> None:
    dump = dump_of_schema(schema(*PLAIN, VERSIONED, SEQUENCE), DumpScope.TABLES, None)
    (words,) = dump.runs
    assert "--dump-history" in words
    assert [word for word in words if word.startswith("--ignore-table")] == ["--ignore-table=zoo.seen"]
    assert (dump.with_history, dump.left_out) == (frozenset({"cages"}), ())


def test_a_table_versioned_by_transaction_is_dumped_apart_after_the_sequences_it_may_need() -> None:
    content = schema(*PLAIN, VERSIONED, BY_TRANSACTION, SEQUENCE, by_transaction=("doors",))
    dump = dump_of_schema(content, DumpScope.EVERYTHING, None)
    first, second = dump.runs
    assert first == ("--triggers", "--", "zoo", "next", "doors")
    assert {"--dump-history", "--ignore-table=zoo.next", "--ignore-table=zoo.doors", "--routines"} <= set(second)
    assert [note.split(":")[0] for note in dump.left_out] == ["history of doors"]
    # Alone it needs no second run: without --dump-history the program dumps it.
    assert len(dump_of_schema(schema(BY_TRANSACTION, by_transaction=("doors",)), DumpScope.TABLES, None).runs) == 1


def test_what_a_dump_lacks_is_named() -> None:
    content = schema(VERSIONED, table("scratch", engine="MEMORY"), table("remote", engine="FEDERATED"))
    dump = dump_of_schema(content, DumpScope.TABLES, "mariadb-dump does not have --dump-history")
    assert not any("--dump-history" in run for run in dump.runs)
    assert [note.split(":")[0] for note in dump.left_out] == ["history of cages", "rows of scratch", "rows of remote"]


def test_rows_whose_default_takes_numbers_from_a_sequence_are_loaded_without_locks() -> None:
    default = SequenceDefault("animals", "id", "nextval(`zoo`.`next`)", (("zoo", "next"),))
    content = SchemaContent("zoo", "utf8mb4", "utf8mb4_bin", (*PLAIN, SEQUENCE), sequence_defaults=(default,))
    assert "--skip-add-locks" in dump_of_schema(content, DumpScope.EVERYTHING, None).runs[0]
    assert default.in_schema("zoo", "new`zoo") == "nextval(`new``zoo`.`next`)"
    assert default.in_schema("other", "new") == default.expression


def test_one_table_is_dumped_with_its_history_where_a_dump_can_hold_it() -> None:
    with_history = dump_of_table(VERSIONED, by_transaction=False, no_history=None, rows_only=True)
    assert {"--dump-history", "--no-create-info"} <= set(with_history.runs[0])
    assert with_history.runs[0][-3:] == ("--", "zoo", "cages")
    without = dump_of_table(BY_TRANSACTION, by_transaction=True, no_history=None, rows_only=False)
    assert "--dump-history" not in without.runs[0]
    assert (without.with_history, without.left_out[0].split(":")[0]) == (frozenset(), "history of doors")


def test_a_history_needs_a_program_that_dumps_it_and_a_server_that_loads_it() -> None:
    assert objection_to_history("mariadb-dump", has_option=True, target_version=None) is None
    assert objection_to_history("mariadb-dump", has_option=True, target_version="10.11.2-MariaDB-log") is None
    old = objection_to_history("mariadb-dump", has_option=True, target_version="10.6.16-MariaDB")
    assert "10.6.16" in (old or "")
    assert "--dump-history" in (objection_to_history("mysqldump", has_option=False, target_version=None) or "")
