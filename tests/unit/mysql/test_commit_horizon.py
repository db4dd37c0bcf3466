"""What a server says of its time and of the end of its binlog proves that nothing older is committed later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.binlog.tail import commit_horizon
from zsnapdb.mysql.probe import dialect
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.binlog.archive_times import CommitHorizon

NOW, SECOND = 1_700_000_000, 1_000_000
END = BinlogCoordinates("binlog.000007", 1234)


class AskedServer(Session):
    """A server whose time and binlog are given. It notes the order of the questions."""

    def __init__(self, *positions: dict[str, Any]) -> None:
        self.address = Address("zsnapdb", Path("/run/server.sock"))
        self.positions = list(positions)
        self.asked: list[str] = []

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        self.asked.append(sql)
        return [(NOW,)]

    def records(self, sql: str) -> list[dict[str, Any]]:
        self.asked.append(sql)
        return self.positions

    def understands(self, statement: str) -> bool:
        return "SLAVE" in statement or "MASTER" in statement


def horizon_of(server: AskedServer) -> CommitHorizon | None:
    return commit_horizon(server, dialect(server))


def test_archive_is_complete_until_the_second_before_the_question() -> None:
    server = AskedServer({"File": END.file, "Position": END.offset})
    assert horizon_of(server) == CommitHorizon((NOW - 1) * SECOND, END)
    assert server.asked == ["SELECT UNIX_TIMESTAMP()", "SHOW MASTER STATUS"]


def test_a_server_without_a_binlog_position_proves_nothing() -> None:
    assert horizon_of(AskedServer()) is None


def test_a_server_that_refuses_a_question_is_an_error() -> None:
    class Refusing(AskedServer):
        def records(self, sql: str) -> list[dict[str, Any]]:
            raise ServerError(f"{sql}: denied")

    with pytest.raises(ServerError, match="denied"):
        horizon_of(Refusing())
