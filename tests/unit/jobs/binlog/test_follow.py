"""Following a server reports each transaction once, in its order, across rotations and resets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import UUID
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import DamagedError, UsageError
from zsnapdb.jobs.binlog.find import FindRequest, follow, follow_files
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles

from .test_find import delete, instance


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path, is_encrypted=False)


@dataclass
class Steps:
    """Does the next thing at the server whenever the following waits, and ends it after the last."""

    todo: list[Callable[[], object]]

    def is_set(self) -> bool:
        return not self.todo

    def wait(self, _seconds: float) -> bool:
        if not self.todo:
            return True
        self.todo.pop(0)()
        return False


def followed(server: Server, request: FindRequest, *todo: Callable[[], object]) -> list[str | None]:
    source = BinlogSource(Flavour.MYSQL, server.uuid, 1, server.folder / "binlog.index", server.folder, server.folder)
    seen: list[str | None] = []
    follow_files(LocalFiles(source), request.filter(), Steps(list(todo)), lambda one: seen.append(one.changes.gtid))
    return seen


def test_what_is_committed_from_now_on_is_reported_once_and_in_order(server: Server) -> None:
    delete(server, 1)
    steps = [lambda number=number: delete(server, number) for number in (2, 3)]
    seen = followed(server, FindRequest(), steps[0], lambda: None, server.rotate, steps[1], lambda: None)
    assert seen == [f"{UUID}:2", f"{UUID}:3"]


def test_only_what_the_request_selects_is_reported(server: Server) -> None:
    delete(server, 1)
    steps = [lambda number=number: delete(server, number) for number in (2, 3)]
    assert followed(server, FindRequest(rows_at_least=3), *steps) == [f"{UUID}:3"]


def test_a_damaged_binlog_ends_the_following(server: Server) -> None:
    delete(server, 1)
    with pytest.raises(DamagedError):
        followed(server, FindRequest(), lambda: (server.folder / "binlog.000001").unlink())


def test_a_period_or_an_order_is_refused_before_the_server_is_asked(server: Server) -> None:
    period = ("1970-01-01T00:00:00Z", "2030-01-01T00:00:00Z")
    for request in (FindRequest(between=period), FindRequest(user_time=period), FindRequest(largest=True)):
        with pytest.raises(UsageError, match="only new transactions"):
            follow(instance(server), request, Steps([]), lambda _one: None)
