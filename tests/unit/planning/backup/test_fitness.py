"""What prevents a backup, what is only a warning, and the hint for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql import locks
from zsnapdb.planning.backup.fitness import (
    BlockSizes,
    Severity,
    judge_blocks,
    judge_lock,
    judge_placement,
    judge_server,
    objection,
    repairs_torn_pages,
    warnings,
)
from zsnapdb.planning.backup.lock_strategy import LockChoice
from zsnapdb.planning.backup.placement import Placement
from zsnapdb.planning.schema_content import rows_not_restored
from zsnapdb.planning.server_facts import Channel, ServerFacts

GOOD = {
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "log_bin": "ON",
    "gtid_mode": "ON",
    "binlog_format": "ROW",
}


def server(
    flavour: Flavour = Flavour.MYSQL, *, version: str = "9.7.4", variables: dict[str, str] | None = None, **more: Any
) -> ServerFacts:
    return ServerFacts(flavour, version, None, 1, {**GOOD, **(variables or {})}, {"InnoDB": 1}, (), **more)


def judged(facts: ServerFacts, *, forced: bool = False) -> dict[str, Severity]:
    severities: dict[str, Severity] = {}
    for finding in judge_server(facts, "z@/sock", forced=forced):
        assert finding.severity is Severity.OK or finding.hint, finding
        severities[finding.what] = finding.severity
    return severities


def test_an_applier_that_may_stop_with_gaps_is_not_stopped() -> None:
    parallel = {"replica_parallel_workers": "4", "replica_preserve_commit_order": "OFF"}
    for names in (parallel, {"slave_parallel_workers": "4", "slave_preserve_commit_order": "OFF"}):
        facts = server(channels=(Channel("", "h", 1, True, True, None),), variables=names)
        severities = {f.what: f.severity for f in judge_server(facts, "z", forced=False, stops_applier=True)}
        assert severities["replica"] is Severity.UNFIT
        assert judged(facts)["replica"] is Severity.OK


def test_a_backup_says_which_rows_no_restore_brings_back() -> None:
    facts = replace(server(), engines={"InnoDB": 7, "MEMORY": 2, "FEDERATED": 1, "BLACKHOLE": 1})
    remote, memory = [text for text in warnings(judge_server(facts, "z", forced=False)) if "rows" in text]
    assert "the rows of 1 FEDERATED table(s) are not in the files of the server" in remote
    assert "the rows of 2 MEMORY table(s) are only in the memory of the server" in memory
    assert "rows" not in judged(server())


@pytest.mark.parametrize("engine", ["FEDERATED", "CONNECT", "SPIDER", "S3", "Columnstore"])
def test_rows_outside_of_the_server_files_are_a_warning(engine: str) -> None:
    (text,) = rows_not_restored({"InnoDB": 7, engine: 1})
    assert text.startswith(f"the rows of 1 {engine} table(s) are not in the files of the server")


def test_doublewrite_that_only_detects_repairs_nothing() -> None:
    assert [
        repairs_torn_pages(server(variables={"innodb_doublewrite": value}))
        for value in ("ON", "DETECT_ONLY", "OFF", "fast")
    ] == [True, False, False, True]


def test_a_good_server_has_nothing_against_it() -> None:
    assert set(judged(server()).values()) == {Severity.OK}


@pytest.mark.parametrize("value", ["1", "2"])
@pytest.mark.parametrize("sync", ["0", "1", "100"])
def test_what_was_written_is_enough_synced_or_not(value: str, sync: str) -> None:
    assert (
        judged(server(variables={"innodb_flush_log_at_trx_commit": value, "sync_binlog": sync}))["redo log"]
        is Severity.OK
    )


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (server(variables={"innodb_flush_log_at_trx_commit": "0"}), "redo log"),
        (server(redo_disabled=True), "redo log"),
        (server(Flavour.MARIADB, variables={"binlog_storage_engine": "innodb"}), "binlog"),
        (
            server(channels=(Channel("", "h", 1, True, True, None),), variables={"log_replica_updates": "OFF"}),
            "replica",
        ),
        (server(sees_all_tables=False), "tables"),
    ],
)
def test_what_would_make_a_backup_lie_stands_against_it(facts: ServerFacts, what: str) -> None:
    assert judged(facts)[what] is Severity.UNFIT
    assert objection(judge_server(facts, "z@/sock", forced=False)) is not None


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (server(variables={"log_bin": "OFF"}), "binlog"),
        (server(variables={"gtid_mode": "OFF"}), "binlog"),
        (server(variables={"binlog_format": "STATEMENT"}), "binlog"),
        (server(prepared_xa=2), "xa"),
        (server(prepared_xa=None), "xa"),
        (server(version="8.0.30", row_versions=1), "row versions"),
    ],
)
def test_what_a_restored_server_would_bring_along_is_warned_of(facts: ServerFacts, what: str) -> None:
    assert judged(facts)[what] is Severity.WARNING
    assert warnings(judge_server(facts, "z@/sock", forced=False))


def test_a_mariadb_replica_is_known_by_its_own_table_and_needs_no_logged_updates() -> None:
    facts = server(
        Flavour.MARIADB, channels=(Channel("", "h", 1, True, True, None),), variables={"log_slave_updates": "OFF"}
    )
    assert judged(facts)["replica"] is Severity.OK


def test_a_forced_lock_needs_no_look_at_all_tables() -> None:
    assert judged(server(sees_all_tables=False), forced=True)["tables"] is Severity.OK


def test_the_global_read_lock_is_always_worth_a_warning() -> None:
    assert judge_lock(LockChoice(locks.properties("ftwrl"), "2 MyISAM")).severity is Severity.WARNING
    assert judge_lock(LockChoice(locks.properties("stage"), "x")).severity is Severity.OK


def test_objections_to_the_paths_are_told_together() -> None:
    (finding,) = judge_placement("main", Placement({}, ("a is on ext4", "b is on xfs")), {"data": "t/d"}, ())
    assert finding.severity is Severity.UNFIT
    assert "a is on ext4; b is on xfs" in finding.detail


PAGES = BlockSizes(16384, {16384: 10}, {16384: "a.ibd"})


def test_files_with_blocks_of_the_page_size_are_fine() -> None:
    assert [f.severity for f in judge_blocks(PAGES, doublewrite=False, zfs_release=(2, 1, 11))] == [Severity.OK]


def test_pages_that_zfs_may_split_stand_against_a_backup_only_where_nothing_repairs_them() -> None:
    small = replace(PAGES, counts={8192: 1, 16384: 9}, examples={8192: "b.ibd", 16384: "a.ibd"})
    assert judge_blocks(small, doublewrite=False, zfs_release=(2, 1, 11))[0].severity is Severity.UNFIT
    assert judge_blocks(small, doublewrite=True, zfs_release=(2, 1, 11))[0].severity is Severity.OK
    assert judge_blocks(small, doublewrite=False, zfs_release=(2, 2, 0))[0].severity is Severity.OK
    assert judge_blocks(small, doublewrite=False, zfs_release=())[0].severity is Severity.UNFIT


def test_blocks_larger_than_a_page_are_named_with_an_example() -> None:
    (finding,) = judge_blocks(
        BlockSizes(16384, {131072: 2, 16384: 1}, {131072: "ibdata1", 16384: "a"}),
        doublewrite=True,
        zfs_release=(2, 3, 0),
    )
    assert finding.severity is Severity.WARNING
    assert "2 of 128K such as ibdata1" in finding.detail
