"""A search reads the binlogs of the server, and the archive for what the server no longer has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import UUID
from tests.unit.support.row_events import DELETE, TABLE_MAP, rows, table, transaction, value
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import NotFound, ServerError, UsageError
from zsnapdb.config.repository import RepositorySettings
from zsnapdb.config.settings import InstanceSettings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.find import FindRequest, Search, search
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles
from zsnapdb.report.binlog import SearchView


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path, is_encrypted=False)


def instance(server: Server) -> Instance:
    return Instance(
        "main",
        InstanceSettings(socket=Path("/s"), repository="r"),
        RepositorySettings(url=f"file://{server.folder}/store"),
    )


def delete(server: Server, number: int) -> None:
    """A transaction that deletes rows: the numbers of the transaction and of the rows are the same."""
    events = ((TABLE_MAP, table()), (DELETE, rows(b"".join(value(n, b"x") for n in range(number)), kind=DELETE)))
    transaction(server.newest, number, *events)
    server.executed = number
    server.write()


def result(server: Server, request: FindRequest, *, is_up: bool = True) -> Search:
    index = server.folder / "binlog.index"
    source = BinlogSource(Flavour.MYSQL, server.uuid, 1, index, server.folder, server.folder)
    problems = [] if is_up else [ServerError("the server is down")]
    return search(instance(server), request, LocalFiles(source) if is_up else None, problems)


def gtids(answer: Search) -> list[str | None]:
    return [entry.changes.gtid for entry in answer.transactions]


@pytest.fixture
def archived(server: Server) -> Server:
    """Three binlogs; all are archived, and the server has removed the first."""
    for number in (1, 2, 3):
        delete(server, number)
        server.look()
        if number < 3:
            server.rotate()
    server.look()
    server.remove("binlog.000001")
    return server


def test_without_a_period_the_binlogs_of_the_server_are_read_and_not_the_archive(archived: Server) -> None:
    answer = result(archived, FindRequest(table="app.t", kinds="delete"))
    assert gtids(answer) == [f"{UUID}:2", f"{UUID}:3"]
    assert (answer.asks_archive, [file.history for file in answer.read]) == (False, [None, None])
    text = SearchView("main", answer).text()
    assert "app.t (3 deleted)" in text
    assert "not searched: the archive; `--between` with an earlier start searches it" in text
    assert "`zsnapdb undo main --gtid GTID`" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_period_that_begins_earlier_also_reads_archived_binlogs_each_once(archived: Server) -> None:
    period = ("1970-01-01T00:00:00Z", "2030-01-01T00:00:00Z")
    answer = result(archived, FindRequest(between=period))
    assert gtids(answer) == [f"{UUID}:{number}" for number in (1, 2, 3)]
    assert [file.history is None for file in answer.read] == [False, True, True]


def test_a_server_that_is_down_leaves_the_archive_and_a_problem(archived: Server) -> None:
    answer = result(archived, FindRequest(rows_at_least=2, largest=True), is_up=False)
    assert gtids(answer) == [f"{UUID}:3", f"{UUID}:2"]
    assert [error.message for error in answer.problems] == ["the server is down"]
    document = json.loads(SearchView("main", answer).document())
    assert document["transactions"][0]["tables"] == [
        {"schema": "app", "table": "t", "inserted": 0, "updated": 0, "deleted": 3, "counted": True}
    ]
    assert (document["transactions"][0]["match"], document["matched"]) == ("yes", 2)


def test_a_damaged_binlog_is_a_problem_and_the_others_are_read(archived: Server) -> None:
    path = archived.folder / "binlog.000002"
    data = bytearray(path.read_bytes())
    data[-60] ^= 1
    path.write_bytes(bytes(data))
    answer = result(archived, FindRequest())
    assert gtids(answer) == [f"{UUID}:3"]
    assert "binlog.000002: the event at" in answer.problems[0].message


def test_nothing_to_read_is_an_error(server: Server) -> None:
    server.archive()
    with pytest.raises(NotFound):
        result(server, FindRequest(), is_up=False)


@pytest.mark.parametrize(
    "request_",
    [
        FindRequest(kinds="select"),
        FindRequest(between=("2026-11-20T10:00:00", "2026-11-20T11:00:00Z")),
        FindRequest(between=("2026-11-20T12:00:00Z", "2026-11-20T11:00:00Z")),
        FindRequest(table="a.`"),
        FindRequest(limit=0),
    ],
)
def test_a_condition_that_cannot_be_understood_is_refused(archived: Server, request_: FindRequest) -> None:
    with pytest.raises(UsageError):
        result(archived, request_)
