"""What a replica says of itself: that it follows, has stopped, or cannot connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from zsnapdb.base.model import Flavour
from zsnapdb.mysql.replication.replica import Lag, lag
from zsnapdb.mysql.session import Session


@dataclass
class Status:
    """A session whose server is a replica with this status."""

    row: dict[str, object]

    def records(self, _: str) -> list[dict[str, object]]:
        return [self.row]


def row(flavour: Flavour, receiving: str, error: str) -> dict[str, object]:
    if flavour is Flavour.MARIADB:
        return {"Slave_IO_Running": receiving, "Slave_SQL_Running": "Yes", "Last_IO_Error": error}
    return {"Replica_IO_Running": receiving, "Replica_SQL_Running": "Yes", "Last_IO_Error": error}


@pytest.mark.parametrize("flavour", Flavour)
def test_a_replica_that_connects_in_vain_says_why(flavour: Flavour) -> None:
    """It would try for days, so nobody would see that its source shows a certificate of somebody else."""

    def seen(receiving: str, error: str) -> Lag:
        return lag(cast(Session, Status(row(flavour, receiving, error))), flavour)

    assert seen("Connecting", "SSL connection error: certificate verify failed") == Lag(
        False, "", "SSL connection error: certificate verify failed"
    )
    assert seen("Connecting", "") == Lag(False, "")
    assert seen("Yes", "an earlier error") == Lag(False, "")
    assert seen("No", "the source has purged binlogs") == Lag(False, "the source has purged binlogs")
