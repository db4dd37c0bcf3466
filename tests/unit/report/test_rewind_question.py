"""Who is asked before a server is stopped is told which replicas must be made anew."""

from __future__ import annotations

from datetime import UTC, datetime

from zsnapdb.base.domain_types import Flavour
from zsnapdb.jobs.restore.rewind import Outage
from zsnapdb.mysql.process.service import ServerService
from zsnapdb.planning.restore.plan import RestoreLayout, RestorePlan, RestorePoint
from zsnapdb.planning.restore.replica_checks import ObservedReaders
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
    steps=(),
)


def asked(readers: ObservedReaders | None) -> str:
    return question(Outage(PLAN, ServerService(("stop",), ("start",), 60.0), 1.0, readers))


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
    text = asked(ObservedReaders())
    assert "another history" in text
    assert "not archived yet" in text
