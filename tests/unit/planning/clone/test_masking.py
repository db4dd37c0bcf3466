"""Whether a clone is masked, what is rebuilt for it, what is said to remain."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.config.settings import parse
from zsnapdb.planning.clone.masking import (
    Changes,
    FileState,
    Scrubbed,
    histories_to_drop,
    is_masked,
    needs_rebuild,
    planned_lines,
    remains,
    renewing_options,
)
from zsnapdb.planning.schema_content import CatalogueTable, TableType

MARIADB = {"innodb_log_file_size": "134217728", "innodb_undo_tablespaces": "3"}


@pytest.mark.parametrize("is_requested", [True, False])
def test_a_policy_masks_whoever_asks(is_requested: bool) -> None:
    assert is_masked(required=True, configured=True, requested=is_requested)
    assert is_masked(required=False, configured=True, requested=is_requested) == is_requested


def test_masking_with_nothing_is_refused() -> None:
    with pytest.raises(PreflightError, match="no masking configured"):
        is_masked(required=False, configured=False, requested=True)


def test_a_policy_without_anything_that_masks_is_no_configuration() -> None:
    text = (
        '[instance.main]\nsocket = "/s"\nrepository = "r"\n[instance.main.masking]\nrequired ='
        ' true\n[repository.r]\nurl = "file:///r"\n'
    )
    with pytest.raises(ConfigError, match="masking is required, but run is empty"):
        parse(text, "test")


def _table(schema: str, name: str, type_of: TableType = TableType.BASE, engine: str = "InnoDB") -> CatalogueTable:
    return CatalogueTable(schema, name, type_of, engine, "", 0)


def _changes(*written: str, untouched: tuple[str, ...] = ()) -> Changes:
    before = {path: FileState(1, 1, 1) for path in (*written, *untouched)}
    return Changes(before, before | {path: FileState(1, 9 * 10**9, 1) for path in written}, 5 * 10**9)


def test_changed_tables_are_rebuilt_or_all_of_them_but_never_the_servers_own() -> None:
    written, kept, system = _table("shop", "written"), _table("shop", "kept"), _table("mysql", "user")
    changes = _changes("shop/written.ibd", untouched=("shop/kept.ibd",))
    assert needs_rebuild([written, kept, system], "changed", (), changes) == [written]
    assert needs_rebuild([written, kept, system], "all", (), changes) == [written, kept]


def test_sequences_and_tables_without_rows_in_files_are_left_alone() -> None:
    sequence = _table("shop", "numbers", TableType.SEQUENCE)
    memory, remote, people = (
        _table("shop", "m", engine="MEMORY"),
        _table("shop", "f", engine="FEDERATED"),
        _table("shop", "people"),
    )
    changes = _changes("shop/numbers.ibd", untouched=("shop/people.ibd",))
    tables = [sequence, memory, remote, people]
    assert needs_rebuild(tables, "all", (), changes) == [people]
    assert needs_rebuild(tables, "changed", (), changes) == []


def test_masking_drops_the_history_of_every_table_that_has_one_unless_it_is_to_be_kept() -> None:
    people, prices = (
        _table("shop", "people", TableType.SYSTEM_VERSIONED),
        _table("shop", "prices", TableType.SYSTEM_VERSIONED),
    )
    tables = [people, prices, _table("shop", "plain"), _table("mysql", "own", TableType.SYSTEM_VERSIONED)]
    assert histories_to_drop(tables, ()) == [people, prices]
    assert histories_to_drop(tables, ("shop.prices",)) == [people]
    with pytest.raises(PreflightError, match=r"shop.plain, which is not a system-versioned table"):
        histories_to_drop(tables, ("shop.plain",))


def test_a_history_is_not_kept_where_masking_changed_the_table() -> None:
    prices = _table("shop", "prices", TableType.SYSTEM_VERSIONED)
    with pytest.raises(PreflightError, match=r"changed shop.prices, whose history is kept"):
        needs_rebuild([prices], "changed", ("shop.prices",), _changes("shop/prices.ibd"))
    assert needs_rebuild([prices], "all", ("shop.prices",), _changes(untouched=("shop/prices.ibd",))) == [prices]


def test_a_plan_says_that_histories_are_dropped_where_there_can_be_some() -> None:
    assert "drop the history" in planned_lines(Flavour.MARIADB)[0]
    assert planned_lines(Flavour.MYSQL) == ()


def test_mariadb_is_given_other_sizes_so_that_redo_and_undo_are_made_anew() -> None:
    assert renewing_options(Flavour.MARIADB, (11, 8, 6), MARIADB) == (
        "innodb_log_file_size=142606336",
        "innodb_undo_tablespaces=4",
    )
    assert (
        renewing_options(Flavour.MARIADB, (11, 8, 6), {**MARIADB, "innodb_undo_tablespaces": "127"})[1]
        == "innodb_undo_tablespaces=126"
    )
    assert renewing_options(Flavour.MARIADB, (10, 6, 1), MARIADB) == ("innodb_log_file_size=142606336",)
    assert renewing_options(Flavour.MYSQL, (9, 7, 4), {}) == ()


def test_what_remains_is_said() -> None:
    engines = {"InnoDB": 3, "Aria": 1}
    clean = remains(Flavour.MARIADB, (11, 8, 6), MARIADB, engines, Scrubbed(undo_renewed=False))
    assert len(clean) == 1
    assert "snapshot" in clean[0]
    dirty = remains(
        Flavour.MARIADB,
        (10, 6, 1),
        MARIADB,
        {"Aria": 1, "ROCKSDB": 2},
        Scrubbed(undo_renewed=False, doublewrite_emptied=False),
    )
    assert [word for word in ("doublewrite", "undo", "ROCKSDB") if not any(word in line for line in dirty)] == []
    more = remains(
        Flavour.MYSQL,
        (8, 0, 11),
        {},
        {},
        Scrubbed(undo_renewed=False, logs_known=False, not_emptied=("ours",)),
    )
    assert [word for word in ("log files", "undo", "ours") if not any(word in line for line in more)] == []
