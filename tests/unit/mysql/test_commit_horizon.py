"""What a server says of its time and of the end of its binlog proves that nothing older is committed later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base.errors import ServerError
from zsnapdb.base.model import BinlogCoordinates
from zsnapdb.mysql.binlog.commit_horizon import commit_horizon
from zsnapdb.mysql.capability import dialect
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.binlog.completeness import CommitHorizon

NOW, SECOND = 1_700_000_000, 1_000_000
END = BinlogCoordinates("binlog.000007", 1234)


class AskedServer(Session):
    """A server whose time, statements and binlog are given. It notes the order of the questions."""

    def __init__(self, *, dates_commits: bool, running: int | None = None, **settings: Any) -> None:
        self.address = Address("zsnapdb", Path("/run/server.sock"))
        self.dates_commits, self.running = dates_commits, running
        self.channels: list[dict[str, Any]] = settings.get("channels", [])
        self.sees_all: bool = settings.get("sees_all", True)
        self.wsrep: str = settings.get("wsrep", "OFF")
        self.position: list[dict[str, Any]] = settings.get("position", [{"File": END.file, "Position": END.offset}])
        self.asked: list[str] = []

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        answers: dict[str, list[tuple[Any, ...]]] = {
            "UNIX_TIMESTAMP": [(NOW,)],
            "original_commit_timestamp": [("original_commit_timestamp", "0")] if self.dates_commits else [],
            "wsrep_on": [("wsrep_on", self.wsrep)],
            "processlist": [(self.running,)],
            "CURRENT_USER": [("zsnapdb@localhost",)],
            "user_privileges": [(1,)] if self.sees_all and parameters == ("'zsnapdb'@'localhost'",) else [],
        }
        word = next(word for word in answers if word in sql)
        self.asked.append(word)
        return answers[word]

    def records(self, sql: str) -> list[dict[str, Any]]:
        self.asked.append(sql)
        return self.channels if "SLAVE" in sql else self.position

    def understands(self, statement: str) -> bool:
        return "SLAVE" in statement or "MASTER" in statement


def horizon_of(server: AskedServer) -> CommitHorizon | None:
    return commit_horizon(server, dialect(server))


def test_a_server_that_dates_commits_is_complete_until_the_second_before_the_question() -> None:
    server = AskedServer(dates_commits=True, running=500, channels=[{"Master_Host": "a"}], wsrep="ON")
    assert horizon_of(server) == CommitHorizon((NOW - 1) * SECOND, END)
    assert server.asked.index("UNIX_TIMESTAMP") < server.asked.index("SHOW MASTER STATUS")


def test_a_server_that_dates_statements_is_complete_until_before_the_oldest_running_statement() -> None:
    server = AskedServer(dates_commits=False, running=30)
    assert horizon_of(server) == CommitHorizon((NOW - 32) * SECOND, END)
    order = [server.asked.index(word) for word in ("UNIX_TIMESTAMP", "processlist", "SHOW MASTER STATUS")]
    assert order == sorted(order)
    assert horizon_of(AskedServer(dates_commits=False)) == CommitHorizon((NOW - 1) * SECOND, END)


@pytest.mark.parametrize("settings", [{"channels": [{"Master_Host": "a"}]}, {"wsrep": "ON"}, {"sees_all": False}])
def test_a_server_that_writes_the_times_of_others_or_hides_their_statements_proves_nothing(
    settings: dict[str, Any],
) -> None:
    assert horizon_of(AskedServer(dates_commits=False, **settings)) is None


@pytest.mark.parametrize("running", [NOW - 1, NOW, 2**62])
def test_a_statement_that_claims_to_run_since_the_epoch_proves_nothing(running: int) -> None:
    assert horizon_of(AskedServer(dates_commits=False, running=running)) is None


def test_a_server_without_a_binlog_position_proves_nothing() -> None:
    assert horizon_of(AskedServer(dates_commits=True, position=[])) is None


def test_a_server_that_refuses_a_question_is_an_error() -> None:
    class Refusing(AskedServer):
        def records(self, sql: str) -> list[dict[str, Any]]:
            raise ServerError(f"{sql}: denied")

    with pytest.raises(ServerError, match="denied"):
        horizon_of(Refusing(dates_commits=True))
