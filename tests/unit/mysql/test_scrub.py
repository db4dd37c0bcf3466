"""Logs are removed from a masked copy, and nothing else."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.mysql.schema.row_remnants import remove_logs

REMOVED = (
    "binlog.000001",
    "binlog.000001.idx",
    "binlog.index",
    "relay.000002",
    "relay-eu@002dwest.000003",
    "relay-eu@002dwest.index",
    "galera.cache",
    "gcache.page.000001",
    "slow.log",
)
KEPT = ("binlog.state", "binlogs", "relay-key.pem", "server-key.pem", "ibdata1", "auto.cnf")


def test_logs_go_with_those_of_replication_channels_and_caches_of_a_cluster(tmp_path: Path) -> None:
    for name in (*REMOVED, *KEPT):
        (tmp_path / name).write_text("x")
    remove_logs(tmp_path, tmp_path / "binlog", tmp_path / "relay", None, None, [tmp_path / "slow.log"] * 2)
    assert {path.name for path in tmp_path.iterdir()} == set(KEPT)
