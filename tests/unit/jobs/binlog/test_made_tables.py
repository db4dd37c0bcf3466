"""The archive has what the server says of tables whose engine no event says, and keeps it when the tables are gone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.archived_server import Server
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ServerError
from zsnapdb.jobs.binlog import archiver
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource
from zsnapdb.mysql.schema import tables
from zsnapdb.planning.binlog.created_tables import CreatedTable
from zsnapdb.repository.binlog_descriptions import CreatedTablePart

SOURCE = BinlogSource(Flavour.MYSQL, "3e11fa47-71ca-11e1-9e33-c80aa9429562", 1, Path("/i"), Path("/d"), Path("/d"))
SAID = {"a": ("InnoDB", "latin1_bin", "Compact"), "s": ("Aria", None, "Page"), "odd": ("x'; DROP", None, None)}


class FakeSession:
    """A session of a server whose tables are SAID."""

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self, _sql: str, parameters: tuple[str, str]) -> list[Any]:
        return [SAID[parameters[1]]] if parameters[1] in SAID else []


class FakeInstance:
    def session(self, *, read_timeout: float) -> FakeSession:
        return FakeSession()


class Silent:
    def session(self, *, read_timeout: float) -> FakeSession:
        raise ServerError("it does not answer")


def table(name: str, **more: Any) -> CreatedTable:
    return CreatedTable("d", name, 0, 40, 90, **more)


def asked(
    monkeypatch: pytest.MonkeyPatch, instance: Any, *made: CreatedTable, source: BinlogSource = SOURCE
) -> list[Any]:
    monkeypatch.setattr(archiver, "find_source", lambda _session: source)
    found = archiver.made_parts(instance, SOURCE, made)
    return [(part.offset, part.engine, part.collation, part.row_format) for part in found]


def test_the_engine_of_each_table_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, FakeInstance(), table("a"), table("s"), table("gone")) == [
        (40, "InnoDB", "latin1_bin", "Compact"),
        (40, "Aria", None, "Page"),
    ]


def test_what_may_not_be_as_it_was_made_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, FakeInstance(), table("a", is_touched=True), table("odd"), table("")) == []
    other = BinlogSource(Flavour.MYSQL, None, 2, Path("/i"), Path("/d"), Path("/d"))
    assert asked(monkeypatch, FakeInstance(), table("a"), source=other) == []
    assert asked(monkeypatch, Silent(), table("a")) == []


def test_no_session_is_opened_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, None) == []


def test_the_server_is_asked_for_the_table_by_its_names() -> None:
    session: Any = FakeSession()
    assert tables.creation_options(session, "d", "a") == SAID["a"]
    assert tables.creation_options(session, "d", "gone") is None


def test_a_rotated_file_keeps_what_was_recorded_of_its_segments(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"a": "MyISAM", "b": "Aria", "c": "InnoDB"}

    def parts(_instance: object, _source: object, made: Iterable[CreatedTable]) -> tuple[CreatedTablePart, ...]:
        return tuple(CreatedTablePart(offset=one.offset, engine=there[one.table]) for one in made if one.table in there)

    monkeypatch.setattr("zsnapdb.jobs.binlog.archiver.made_parts", parts)
    archiver = server.archiver()

    def make(name: str) -> None:
        server.executed += 1
        server.newest.gtid(server.executed).mark(name).query(b"CREATE TABLE %s (id INT)" % name.encode())
        server.write()

    for name in ("a", "b"):
        make(name)
        archiver.look()
    del there["a"]
    make("c")
    server.rotate()
    archiver.look()
    (file, _) = server.check().files
    marks = server.files["binlog.000001"].marks
    assert file.is_rotated
    assert [(part.offset, part.engine) for part in file.span.made] == [
        (marks["a"], "MyISAM"),
        (marks["b"], "Aria"),
        (marks["c"], "InnoDB"),
    ]


def test_what_an_alter_may_have_changed_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    altered, converted = table("a", is_altered=True), table("a", is_altered=True, is_converted=True)
    assert asked(monkeypatch, FakeInstance(), altered, converted) == [
        (40, "InnoDB", "latin1_bin", None),
        (40, "InnoDB", None, None),
    ]
