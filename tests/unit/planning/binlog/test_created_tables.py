"""Laws: a replay gives tables without ENGINE the engine that they had, or says of which tables it does not know it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.planning.binlog.created_tables import (
    CreatedTable,
    Defaults,
    EnginePlan,
    RecordedTable,
    contradiction,
    fits,
    listing,
    plan_engines,
)

ENGINES = ("InnoDB", "MyISAM", "MEMORY")


@dataclass(frozen=True)
class Made:
    """A table of the source: its engine, and whether its binlog and the archive say it."""

    engine: str
    has_rows: bool
    is_recorded: bool


tables = st.builds(Made, st.sampled_from(ENGINES), st.booleans(), st.booleans())


def planned(source: list[Made], default: str) -> tuple[list[tuple[int, CreatedTable]], EnginePlan]:
    kinds = [one.engine == "InnoDB" if one.has_rows else None for one in source]
    made = [
        (1 + at // 3, CreatedTable("d", f"t{at}", 100 * at, 100 * at + 40, 100 * at + 90, kind))
        for at, kind in enumerate(kinds)
    ]
    records = {
        (number, table.offset): RecordedTable(one.engine)
        for (number, table), one in zip(made, source, strict=True)
        if one.is_recorded
    }
    return made, plan_engines(made, records, Defaults(default))


def engines_made(made: list[tuple[int, CreatedTable]], plan: EnginePlan, default: str) -> list[str]:
    """Return the engine that each table gets in a server that stops where the plan says."""
    result = []
    for number, table in made:
        passed = [stop.engine for stop in plan.stops if (stop.number, stop.offset) <= (number, table.start)]
        result.append(passed[-1] if passed else default)
    return result


@given(st.lists(tables, max_size=8), st.sampled_from(ENGINES))
def test_each_table_gets_its_engine_or_is_named(source: list[Made], default: str) -> None:
    made, plan = planned(source, default)
    doubtful = {*plan.unknown, *plan.contradicted}
    for one, (_, table), engine in zip(source, made, engines_made(made, plan, default), strict=True):
        assert engine == one.engine or table in doubtful
        assert not one.is_recorded or table not in doubtful


@given(st.lists(tables, max_size=8), st.sampled_from(ENGINES))
def test_no_table_of_which_the_binlog_says_the_kind_gets_one_of_the_other_kind(
    source: list[Made], default: str
) -> None:
    made, plan = planned(source, default)
    for (_, table), engine in zip(made, engines_made(made, plan, default), strict=True):
        assert fits(engine, table.is_transactional) or table in plan.contradicted


@given(st.lists(st.sampled_from(ENGINES), max_size=8))
def test_a_replay_stops_only_where_the_engine_changes(engines: list[str]) -> None:
    _, plan = planned([Made(engine, True, True) for engine in engines], "InnoDB")
    changes = sum(after != before for before, after in zip(["InnoDB", *engines], engines, strict=False))
    assert len(plan.stops) == changes


def test_nothing_is_said_where_all_is_known() -> None:
    _, plan = planned([Made("InnoDB", True, False), Made("InnoDB", False, True)], "InnoDB")
    assert plan == EnginePlan()


def test_a_record_that_the_binlog_contradicts_does_not_count() -> None:
    table = CreatedTable("d", "t", 0, 40, 90, is_transactional=True)
    plan = plan_engines([(1, table)], {(1, 40): RecordedTable("MyISAM")}, Defaults("MyISAM"))
    assert [stop.engine for stop in plan.stops] == ["InnoDB"]
    table = CreatedTable("d", "t", 0, 40, 90, is_transactional=False)
    assert plan_engines([(1, table)], {(1, 40): RecordedTable("InnoDB")}, Defaults("InnoDB")).contradicted == (table,)


def test_a_dropped_table_is_not_named() -> None:
    for is_transactional in (None, False):
        table = CreatedTable("d", "t", 0, 40, 90, is_transactional, is_touched=True, is_dropped=True)
        assert plan_engines([(1, table)], {}, Defaults("InnoDB")) == EnginePlan()


def test_a_table_without_its_options_is_made_with_the_recorded_collation_alone() -> None:
    bare, plain = (
        CreatedTable("d", name, at, at + 40, at + 90, True, lacks_options=at == 0)
        for at, name in ((0, "a"), (100, "b"))
    )
    records = {(1, 40): RecordedTable("InnoDB", "ucs2_general_ci"), (1, 140): RecordedTable("InnoDB", "latin1_bin")}
    (stop,) = plan_engines([(1, bare), (1, plain)], records, Defaults("InnoDB")).stops
    assert (stop.database, stop.collation, stop.offset, stop.end) == ("d", "ucs2_general_ci", 0, 90)
    planned = plan_engines([(1, bare)], {}, Defaults("InnoDB"))
    assert planned.bare == (bare,)
    assert "says the character set" in str(contradiction(planned, Defaults("InnoDB"), "applier"))
    assert contradiction(planned, Defaults("InnoDB"), "client") is None


def test_the_first_of_many_names_are_told_once_each() -> None:
    many = [CreatedTable("d", f"t{n // 2}", 0, 0, 0) for n in range(14)]
    assert listing(many) == "d.t0, d.t1, d.t2, d.t3, d.t4 and 2 more"


@given(
    st.lists(
        st.tuples(st.sampled_from(("Dynamic", "Compact", "Redundant", "Compressed")), st.booleans(), st.booleans())
    )
)
def test_each_recorded_table_of_innodb_gets_its_row_format(source: list[tuple[str, bool, bool]]) -> None:
    made, records = [], {}
    for at, (row_format, names_engine, names_format) in enumerate(source):
        is_named = names_format or row_format == "Compressed"
        table = CreatedTable("d", "t", at, at, at, True, names_engine=names_engine, names_format=is_named)
        made.append((1, table))
        records[1, at] = RecordedTable("InnoDB", None, row_format)
    stops = plan_engines(made, records, Defaults("InnoDB")).stops
    for at, (row_format, _, _) in enumerate(source):
        passed = [stop.row_format for stop in stops if stop.offset <= at]
        assert made[at][1].names_format or (passed[-1] if passed else "dynamic") == row_format.lower()


def test_a_named_engine_is_never_in_doubt() -> None:
    for record in ({}, {(1, 40): RecordedTable("MyISAM", None, "Fixed")}):
        for is_transactional in (None, True, False):
            table = CreatedTable("d", "t", 0, 40, 90, is_transactional, names_engine=True)
            assert plan_engines([(1, table)], record, Defaults("InnoDB")) == EnginePlan()
