"""A plan refuses a replay that would make a table in another engine than the source had, as the replay itself would."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs
from zsnapdb.jobs.restore.backup_selection import check_engines, default_engine
from zsnapdb.planning.binlog.created_tables import CreatedTable, Defaults
from zsnapdb.planning.restore.steps import LogPart, Replay
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.binlog_descriptions import ArchivedFile, CreatedTablePart

CREATE, ALTER, DROP = b"CREATE TABLE t (id INT)", b"ALTER TABLE t ADD a INT", b"DROP TABLE t"
Engines = Callable[[str | None], None]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Have the server tell the archiver this engine of each table; None: it does not answer."""

    def tell(engine: str | None) -> None:
        def parts(_instance: object, _source: object, made: Iterable[CreatedTable]) -> tuple[CreatedTablePart, ...]:
            return tuple(CreatedTablePart(offset=one.offset, engine=engine) for one in made) if engine else ()

        monkeypatch.setattr("zsnapdb.jobs.binlog.archiver.made_parts", parts)

    return tell


def run(server: Server, *statements: bytes) -> None:
    for statement in statements:
        server.executed += 1
        server.newest.gtid(server.executed).query(statement)
    server.write()
    server.look()


def check(server: Server, start: Defaults, *, stop: int | None = None, batch: int = 9) -> None:
    """Check a replay of all archived binlogs, `batch` files in a step, the first of them up to `stop`."""
    files = server.load().files
    parts = [LogPart(f.incarnation, f.name, f.end, f.start, stop if f is files[0] else None) for f in files]
    steps = [Replay(at, tuple(parts[at : at + batch]), None) for at in range(0, len(parts), batch)]
    check_engines(server.archive(), LocalBinlogs(), files, steps, start)


INNODB = Defaults("InnoDB")


def test_a_table_without_transactions_and_record_is_refused(server: Server, said: Engines) -> None:
    said(None)
    run(server, CREATE, ALTER)
    with pytest.raises(PreflightError, match=r"made app\.t in another storage engine than InnoDB"):
        check(server, INNODB)
    check(server, Defaults("MyISAM"))
    check(server, INNODB, stop=server.load().files[0].start)


def test_a_record_of_the_archiver_says_the_engine(server: Server, said: Engines) -> None:
    said("MyISAM")
    run(server, CREATE)
    check(server, INNODB)
    said("InnoDB")
    run(server, CREATE.replace(b"t ", b"u "))
    with pytest.raises(PreflightError, match=r"app\.u"):
        check(server, INNODB)


def test_a_table_dropped_in_a_later_binlog_of_the_step_is_no_matter(server: Server, said: Engines) -> None:
    said(None)
    run(server, CREATE)
    server.rotate()
    run(server, DROP)
    check(server, INNODB)
    with pytest.raises(PreflightError, match=r"app\.t"):
        check(server, INNODB, batch=1)


def test_binlogs_are_fetched_only_where_a_description_says_so(
    server: Server, said: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    fetch = BinlogArchive.fetch

    def count(archive: BinlogArchive, file: ArchivedFile, path: Path) -> None:
        fetched.append(file.name)
        fetch(archive, file, path)

    monkeypatch.setattr(BinlogArchive, "fetch", count)
    said(None)
    run(server, CREATE + b" ENGINE=MyISAM", DROP)
    for statement in (CREATE, DROP):
        server.rotate()
        run(server, statement)
    check(server, INNODB)
    assert fetched == ["binlog.000002", "binlog.000003"]


def test_the_default_engine_is_that_of_the_server_options() -> None:
    variables = {"default_storage_engine": "Aria"}
    assert default_engine({}, ()) == INNODB
    assert default_engine(variables, ("port=1",)) == Defaults("Aria")
    assert default_engine(variables, ("loose-default-storage-engine = MyISAM",)) == Defaults("MyISAM")
