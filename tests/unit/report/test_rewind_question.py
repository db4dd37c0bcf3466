"""Who is asked before a server is stopped is told which replicas must be made anew."""

from __future__ import annotations

from datetime import UTC, datetime

from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.documents.base import moment
from zsnapdb.jobs.restore.left_out import ArchivedRest
from zsnapdb.jobs.restore.rewind import Outage
from zsnapdb.mysql.process.service import ServerService
from zsnapdb.planning.binlog.changes import TableChanges
from zsnapdb.planning.restore.left_out import LeftOut
from zsnapdb.planning.restore.plan import RestoreLayout, RestorePlan, RestorePoint
from zsnapdb.planning.restore.replica_checks import ObservedReaders
from zsnapdb.planning.restore.steps import Promote, PromotePart
from zsnapdb.report.restore import question

PLAN = RestorePlan(
    restore_id="20261120T120000Z-0001",
    instance="main",
    repository="0123",
    requested="latest",
    created=datetime(2026, 11, 20, 12, tzinfo=UTC),
    flavour=Flavour.MYSQL,
    server_version="8.4.3",
    server_id=1,
    server_uuid=None,
    variables={},
    backup_id="20261120T120000Z-0001",
    point=RestorePoint(None, None, None, ()),
    layout=RestoreLayout("tank/r", {}, {}, "/mnt/r", {}),
    steps=(
        Promote(
            (PromotePart("data", "tank/r", "tank/mysql", "tank/mysql-replaced", "/srv"),), (), "20261120T120000Z-0001"
        ),
    ),
)


LEFT_OUT = LeftOut(
    transactions=5,
    is_least=True,
    first=1_764_000_000_000_000,
    last=1_764_000_060_000_000,
    tables=(TableChanges("shop", "orders", deleted=3),),
    more_tables=2,
    statements=1,
    unknown=("the binlogs from b.7 on were not read",),
)
ARCHIVED = ArchivedRest(BinlogCoordinates("b.7", 190), "20261120T120000Z-0009")


def asked(readers: ObservedReaders | None, left_out: LeftOut = LEFT_OUT, archived: ArchivedRest = ARCHIVED) -> str:
    return question(Outage(PLAN, ServerService(("stop",), ("start",), 60.0), 1.0, readers, left_out, archived))


def test_the_question_names_readers_accounts_that_may_read_and_what_cannot_be_seen() -> None:
    readers = ObservedReaders(("replica@db2",), may_read=("'replica'@'%'",), unknown=("who db2 is",))
    text = asked(readers)
    for words in ("replica@db2", "'replica'@'%'", "who db2 is", "must be rebuilt"):
        assert words in text
    assert text.endswith("Stop the server of main now?")


def test_the_question_says_nothing_of_replicas_of_a_server_without_any() -> None:
    assert "eplica" not in asked(ObservedReaders())


def test_the_question_does_not_promise_that_nothing_is_left_out() -> None:
    """The archive of an abandoned history ends at the point, but the server has committed more in its own history."""
    assert "another history" in asked(ObservedReaders(), LeftOut())


def test_the_question_says_what_is_lost_and_where_it_stays() -> None:
    assert LEFT_OUT.first is not None
    assert LEFT_OUT.last is not None
    restore = f"zsnapdb restore main --to latest --history {ARCHIVED.history} --plan"
    lines = asked(ObservedReaders()).splitlines()
    assert lines[1:7] == [
        f"  left out  at least 5 transactions, committed from {moment(LEFT_OUT.first)} to {moment(LEFT_OUT.last)}",
        "  changed   shop.orders (3 deleted), 2 more tables, 1 statement such as DDL",
        "  unknown   the binlogs from b.7 on were not read",
        f"  archived  up to b.7:190; to restore it: `{restore}`",
        "  kept      the replaced datasets tank/mysql-replaced",
        "  salvage   what was written after the point: `zsnapdb clone create main --from 20261120T120000Z-0001`",
    ]


def test_the_question_says_why_the_last_binlogs_are_not_archived() -> None:
    assert "archived  NOT the last binlogs: timed out" in asked(None, archived=ArchivedRest(missing="timed out"))
