"""What a migration did is told by definitions and files, and judged by the limits of the site."""

from __future__ import annotations

from zsnapdb.config.services import MigrationSettings
from zsnapdb.planning.clone.diff import definition, schema_difference
from zsnapdb.planning.clone.masking import Changes, FileState, TableFiles
from zsnapdb.planning.clone.migration_findings import (
    MOST_PROBED,
    MigrationFindings,
    MigrationRun,
    SecondRun,
    TableAccess,
    TableEffect,
    TableWait,
    TouchedTable,
    only_schema,
    problems,
    touched_tables,
    watched_tables,
)
from zsnapdb.planning.sql_quoting import TableName

LATER = 10**18
BEFORE = FileState(4096, 5, 1)
A, B, C, D = (TableName("shop", name) for name in "abcd")


def files(*names: TableName) -> set[TableFiles]:
    return {TableFiles(name.schema, str(name.table)) for name in names}


def test_a_table_that_is_new_gone_redefined_rewritten_or_written_is_touched_and_no_other() -> None:
    before = {"shop/a.ibd": BEFORE, "shop/b.ibd": BEFORE, "shop/c.ibd": BEFORE, "shop/e.ibd": BEFORE}
    after = {
        "shop/a.ibd": FileState(4096, 5, 2),
        "shop/b.ibd": FileState(4096, LATER + 1, 1),
        "shop/d.ibd": FileState(4096, LATER + 1, 3),
        "shop/e.ibd": BEFORE,
    }
    unchanged = TableName("shop", "e")
    found = touched_tables(
        {A: "CREATE a", B: "CREATE b", C: "CREATE c", unchanged: "CREATE e"},
        {A: "CREATE a2", B: "CREATE b", D: "CREATE d", unchanged: "CREATE e"},
        files(A, B, C, D, unchanged),
        Changes(before, after, LATER),
    )
    assert {str(one.name): one.effects for one in found} == {
        "shop.a": {TableEffect.REDEFINED, TableEffect.REWRITTEN},
        "shop.b": {TableEffect.WRITTEN},
        "shop.c": {TableEffect.DROPPED},
        "shop.d": {TableEffect.CREATED},
    }


def test_a_new_file_of_a_definition_is_no_copy_of_rows() -> None:
    """MariaDB replaces the .frm file of a table by each ALTER TABLE, also by one that copies nothing."""
    before = {"shop/a.ibd": BEFORE, "shop/a.frm": FileState(800, 5, 2)}
    after = {"shop/a.ibd": FileState(4096, LATER + 1, 1), "shop/a.frm": FileState(900, LATER + 1, 3)}
    (found,) = touched_tables({A: "CREATE a"}, {A: "CREATE a2"}, files(A), Changes(before, after, LATER))
    assert found.effects == {TableEffect.REDEFINED, TableEffect.WRITTEN}


def test_a_second_run_is_said_to_change_no_definition_as_rows_are_not_compared() -> None:
    assert SecondRun.CHANGES_NO_DEFINITION.value == "changes no definition"


def test_the_largest_tables_that_others_can_use_before_and_after_are_watched() -> None:
    many = [TouchedTable(TableName("s", f"t{n:02}"), frozenset({TableEffect.WRITTEN})) for n in range(30)]
    new = TouchedTable(A, frozenset({TableEffect.CREATED}))
    view = TouchedTable(B, frozenset({TableEffect.REDEFINED}))
    sizes = {one.name: number for number, one in enumerate([*many, new])}
    chosen = watched_tables([*many, new, view], sizes)
    assert chosen == tuple(TableName("s", f"t{n:02}") for n in range(29, 29 - MOST_PROBED, -1))


def test_the_counter_of_a_table_is_no_part_of_its_definition() -> None:
    assert definition("CREATE TABLE a (x) ENGINE=InnoDB AUTO_INCREMENT=7 CHARSET=x") == (
        "CREATE TABLE a (x) ENGINE=InnoDB CHARSET=x"
    )
    assert schema_difference({"s.a": "x\ny"}, {"s.a": "x\ny"}) == ""
    assert "+y" in schema_difference({"s.a": "x"}, {"s.a": "x\ny"}).splitlines()


def findings(*, seconds: float = 1.0, failure: str = "", read: float = 0.1, failed: int = 0) -> MigrationFindings:
    wait = TableWait(A, TableAccess.READ, read, 0.0, 10, failed, "gone" if failed else "")
    return MigrationFindings(MigrationRun(seconds, failure), (wait,), 0.01, SecondRun.FAILS)


def test_what_is_beyond_a_limit_is_a_problem_and_names_the_limit() -> None:
    limits = MigrationSettings.model_validate({"longest": "2s", "longest_read_wait": "500ms"})
    assert problems(findings(), limits) == ()
    for bad, words in (
        (findings(seconds=2.5), "migration.longest is 2 s"),
        (findings(read=0.6), "a read of shop.a waits 0.60 s; migration.longest_read_wait is 0.5 s"),
        (findings(failed=3), "3 of 10 reads of shop.a fail: gone"),
        (findings(failure="no such table"), "the migration fails: no such table"),
    ):
        (problem,) = problems(bad, limits)
        assert words in problem
    strict = limits.model_copy(update={"repeatable": True})
    assert "a second run fails" in problems(findings(), strict)[0]
    assert problems(findings(read=99.0), MigrationSettings(longest_read_wait=None)) == ()


def test_schema_is_named_only_if_it_is_the_only_one() -> None:
    assert [only_schema(names) for names in ([], ["shop"], ["crm", "shop"])] == ["", "shop", ""]
