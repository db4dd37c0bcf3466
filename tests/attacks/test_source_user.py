"""A user of the source's databases tries to get statements into a restore."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.in_guest import Lab

NAME = "x\nDROP DATABASE ledger/*!*/;"
"""As a table's name: mysqlbinlog prints it as it is, so for a client the second line is a statement."""


@pytest.fixture
def written(lab: Lab) -> Iterator[None]:
    """After a backup, a table of that name is written; the binlogs are archived."""
    assert lab.zsnapdb("backup").code == 0
    lab.sql("CREATE DATABASE hostile")
    lab.sql(f"CREATE TABLE hostile.`{NAME}` (id INT PRIMARY KEY)")
    lab.sql(f"INSERT INTO hostile.`{NAME}` VALUES (1)")
    assert lab.zsnapdb("binlog", "archive", "main", "--once").code == 0
    yield
    lab.sql("DROP DATABASE hostile")
    assert lab.zsnapdb("backup").code == 0, "the newest backup, from which other tests restore, needs no such binlog"


def test_the_name_of_a_table_is_no_statement_for_a_replay_by_a_client(lab: Lab, written: None) -> None:
    config = lab.changed(("[repository.s3]", '[restore]\nreplay = "client"\n\n[repository.s3]'))
    done = lab.zsnapdb("restore", "main", "--to", "latest", "--target", "tank/split", config=config)
    assert done.code == 4, done.stdout + done.stderr
    assert "cannot be replayed by a client" in done.stderr
    assert lab.zsnapdb("restore", "main", "--abandon", config=config).code == 0
    # The server's own applier takes names as names.
    assert lab.zsnapdb("restore", "main", "--to", "latest", "--target", "tank/whole").code == 0
