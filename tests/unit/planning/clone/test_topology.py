"""Sets of clones: names, and the words that wire a replica."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError, UsageError
from zsnapdb.planning.clone.topology import CloneTopology, names, refuse_without_gtids, replica_statements


def test_the_source_is_the_first_of_the_names() -> None:
    assert names("shop", 3, CloneTopology.REPLICATION) == ("shop-1", "shop-2", "shop-3")
    assert names("shop", 1, CloneTopology.INDEPENDENT) == ("shop-1",)


@pytest.mark.parametrize(
    ("count", "topology"),
    [(1, CloneTopology.REPLICATION), (0, CloneTopology.INDEPENDENT), (51, CloneTopology.INDEPENDENT)],
)
def test_a_set_that_makes_no_sense_is_refused(count: int, topology: CloneTopology) -> None:
    with pytest.raises(UsageError):
        names("shop", count, topology)


def test_each_server_is_told_in_its_own_words() -> None:
    assert replica_statements(Flavour.MYSQL, knows_replica=True).change.startswith(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST"
    )
    assert "MASTER_AUTO_POSITION=1" in replica_statements(Flavour.MYSQL, knows_replica=False).change
    assert "MASTER_USE_GTID=slave_pos" in replica_statements(Flavour.MARIADB, knows_replica=True).change


def test_without_gtids_or_binlog_there_is_no_replication() -> None:
    refuse_without_gtids(Flavour.MYSQL, has_binlog=True, has_gtids=True)
    with pytest.raises(PreflightError, match="lack GTIDs"):
        refuse_without_gtids(Flavour.MYSQL, has_binlog=True, has_gtids=False)
    with pytest.raises(PreflightError, match="lack a binlog"):
        refuse_without_gtids(Flavour.MYSQL, has_binlog=False, has_gtids=True)
