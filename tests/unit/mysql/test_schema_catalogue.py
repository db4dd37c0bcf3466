"""The catalogue names everything that a schema holds, of every type and engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.support.catalogue_session import CatalogueSession
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql import locks
from zsnapdb.mysql.schema import schema_catalogue
from zsnapdb.planning.backup.lock_strategy import choose
from zsnapdb.planning.schema_content import RowPlace, SequenceDefault, TableType
from zsnapdb.planning.server_facts import ServerFacts

SYSTEM = ("mysql", "sys", "information_schema", "performance_schema")


@pytest.fixture
def session() -> Iterator[CatalogueSession]:
    session = CatalogueSession()
    session.put(
        "schemata", schema_name="zoo", default_character_set_name="utf8mb4", default_collation_name="utf8mb4_bin"
    )
    for name, kind, engine in (
        ("animals", "BASE TABLE", "InnoDB"),
        ("broken", "BASE TABLE", None),
        ("cages", "SYSTEM VERSIONED", "InnoDB"),
        ("doors", "SYSTEM VERSIONED", "MyISAM"),
        ("next_animal", "SEQUENCE", "Aria"),
        ("scratch", "BASE TABLE", "MEMORY"),
        ("some_animals", "VIEW", None),
        ("of_this_session", "TEMPORARY", "InnoDB"),
        ("from_the_future", "GRAPH", "InnoDB"),
    ):
        session.put_table("zoo", name, kind, engine)
    session.put_table("mysql", "user", "BASE TABLE", "Aria")
    session.put_table("performance_schema", "threads", "BASE TABLE", "PERFORMANCE_SCHEMA")
    session.put_table("information_schema", "TABLES", "SYSTEM VIEW", "MEMORY")
    yield session
    session.close()


def test_system_versioned_tables_and_sequences_have_rows_like_base_tables(session: CatalogueSession) -> None:
    stored = schema_catalogue.stored_tables(session)
    assert [f"{table.schema}.{table.name}" for table in stored] == [
        "mysql.user",
        *(
            f"zoo.{name}"
            for name in ("animals", "broken", "cages", "doors", "from_the_future", "next_animal", "scratch")
        ),
    ]
    by_name = {table.name: table for table in stored}
    assert by_name["cages"].is_versioned
    assert by_name["next_animal"].is_sequence
    assert by_name["from_the_future"].type is TableType.BASE
    assert (by_name["scratch"].row_place, by_name["broken"].row_place) == (RowPlace.MEMORY, RowPlace.FILES)


def test_no_snapshot_without_a_lock_is_taken_of_tables_that_are_not_base_tables_and_not_crash_safe() -> None:
    for kind, engine in (("SYSTEM VERSIONED", "MyISAM"), ("SEQUENCE", "Aria"), ("BASE TABLE", None)):
        with contextlib.closing(CatalogueSession()) as session:
            session.put_table("shop", "orders", "BASE TABLE", "InnoDB")
            session.put_table("shop", "other", kind, engine)
            counts = schema_catalogue.engine_counts(session, SYSTEM)
        facts = ServerFacts(Flavour.MARIADB, "11.8.6-MariaDB", None, 1, {}, {"InnoDB": 1}, ())
        assert choose(facts, "none", locks.STRATEGIES).name == "none"
        with_others = replace(facts, engines=counts)
        with pytest.raises(PreflightError, match=f"1 {engine or 'unknown'}"):
            choose(with_others, "none", locks.STRATEGIES)


def test_a_schema_is_listed_with_everything_in_it(session: CatalogueSession) -> None:
    column = {"table_schema": "zoo", "table_name": "cages", "ordinal_position": 1}
    session.put("columns", **column, column_name="s", data_type="bigint", generation_expression="ROW START")
    session.put(
        "columns", **column, column_name="n", data_type="bigint", column_default="nextval(`zoo`.`next``animal`)"
    )
    session.put("columns", **column, column_name="t", data_type="varchar", column_default="'nextval(x)'")
    session.put("routines", routine_schema="zoo", routine_type="PROCEDURE", routine_name="feed")
    session.put("events", event_schema="zoo", event_name="nightly")
    session.put(
        "triggers", trigger_schema="zoo", trigger_name="t", event_object_schema="zoo", event_object_table="cages"
    )
    content = schema_catalogue.content(session, "zoo")
    assert (content.charset, content.collation) == ("utf8mb4", "utf8mb4_bin")
    assert content.views == ("some_animals",)
    assert "of_this_session" not in {table.name for table in content.tables}
    assert (content.versioned_by_transaction, content.versioned_by_time) == (frozenset({"cages"}), ("doors",))
    assert content.sequence_defaults == (
        SequenceDefault("cages", "n", "nextval(`zoo`.`next``animal`)", (("zoo", "next`animal"),)),
    )
    assert (content.routines, content.events, content.triggers) == (("procedure feed",), ("nightly",), ("t",))
    assert schema_catalogue.triggers_of(session, "zoo", "cages") == ("t",)


def test_one_table_is_found_by_its_name_whatever_its_type(session: CatalogueSession) -> None:
    tables = {name: schema_catalogue.find_table(session, "zoo", name) for name in ("cages", "some_animals", "nothing")}
    assert [None if table is None else table.type for table in tables.values()] == [
        TableType.SYSTEM_VERSIONED,
        TableType.VIEW,
        None,
    ]


def test_an_event_that_a_server_without_accounts_does_not_show_is_known(session: CatalogueSession) -> None:
    session.put("events", event_schema="zoo", event_name="nightly")
    assert schema_catalogue.content(session, "zoo").hidden_events == ()
    session.put_hidden_event("zoo", "nightly")
    session.put_hidden_event("zoo", "weekly")
    session.put_hidden_event("other", "yearly")
    content = schema_catalogue.content(session, "zoo")
    assert (content.events, content.hidden_events) == (("nightly",), ("weekly",))
