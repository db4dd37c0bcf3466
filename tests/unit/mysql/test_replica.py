"""What a replica says of itself: that it follows, has stopped, or cannot connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError
from zsnapdb.jobs.restore.handover import SourceWatch
from zsnapdb.mysql.replication.channels import Lag, replica_lag
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
        return replica_lag(cast(Session, Status(row(flavour, receiving, error))), flavour)

    assert seen("Connecting", "SSL connection error: certificate verify failed") == Lag(
        False, "", "SSL connection error: certificate verify failed"
    )
    assert seen("Connecting", "") == Lag(False, "")
    assert seen("Yes", "an earlier error") == Lag(False, "")
    assert seen("No", "the source has purged binlogs") == Lag(False, "the source has purged binlogs")


def following(flavour: Flavour, offset: int, state: str) -> Lag:
    words = ("Slave", "Master") if flavour is Flavour.MARIADB else ("Replica", "Source")
    status: dict[str, object] = {
        **row(flavour, "Yes", ""),
        f"{words[1]}_Log_File": "binlog.000007",
        f"Read_{words[1]}_Log_Pos": offset,
        f"Seconds_Behind_{words[1]}": 7,
        f"{words[0]}_SQL_Running_State": state,
    }
    return replica_lag(cast(Session, Status(status)), flavour)


@pytest.mark.parametrize("flavour", Flavour)
def test_source_that_sends_no_event_is_left_in_time(flavour: Flavour) -> None:
    """A byte a second keeps the connection, and is no event. A long statement of the applier is no silence."""
    word = "Slave" if flavour is Flavour.MARIADB else "Replica"
    waits, applies = f"{word} has read all relay log; waiting for more updates", "altering table"
    watch = SourceWatch()
    for minute in range(60):
        watch.check(following(flavour, minute // 9, waits), 60.0 * minute)
    for minute in range(60, 600):
        watch.check(following(flavour, 6, applies), 60.0 * minute)
    for minute in range(600, 610):
        watch.check(following(flavour, 6, waits), 60.0 * minute)
    with pytest.raises(ServerError, match="received nothing from its source for 10 minutes"):
        watch.check(following(flavour, 6, waits), 60.0 * 610)
