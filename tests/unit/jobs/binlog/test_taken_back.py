"""A server that a restore returned to an earlier state has the newest history, even before its first transaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import GtidSet
from zsnapdb.jobs.record import production_restores
from zsnapdb.planning.binlog.route import Route, follow
from zsnapdb.planning.binlog.route_elements import BackupPoint, EndKind

OTHER = "aaaaaaaa-0000-0000-0000-0000000000ff"
RESTORE = "20261120T120000Z-0001"


def restored_from(server: Server, folder: Path, executed: int) -> Server:
    """Return a server with another UUID and the first transactions of the server, and without its own."""
    folder.mkdir()
    made = Server(folder, OTHER)
    made.executed, made.clock = executed, server.clock + 60
    made.rotate()
    made.remove("binlog.000001")
    return made


def route_of(server: Server, restored: Server) -> Route:
    """Return the route from a backup of the restored server."""
    end = BinlogCoordinates("binlog.000002", len(restored.files["binlog.000002"].data))
    moment = restored.clock * 1_000_000
    gtids = GtidSet.parse(f"{server.uuid}:1-3")
    point = BackupPoint("20261120T120100Z-0001", moment, moment, OTHER, end, gtids, Flavour.MYSQL)
    archive = server.archive().load()
    return follow(point, archive.files, archive.state)


@pytest.mark.parametrize("restore", [RESTORE, None])
def test_what_a_restore_took_back_is_not_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restore: str | None
) -> None:
    """Without a restore, the server may be a replica that lags, and `latest` must not lose what is archived."""
    server = Server(tmp_path, is_encrypted=False)
    server.commit(5)
    server.archiver().look()
    monkeypatch.setattr(production_restores, "restore_in_place", lambda _: restore)
    restored = restored_from(server, tmp_path / "restored", 3)
    archiver = restored.archiver(among=server.archive())
    archiver.look()
    recorded = [(one.restore, one.taken_back) for one in server.archive().load().incarnations]
    assert recorded[1:] == [(restore, f"{server.uuid}:1-5" if restore else None)]
    expected = EndKind.NEWEST if restore else EndKind.UNPROVEN_FAILOVER
    assert route_of(server, restored).end.kind is expected
    if restore is None:
        return
    # A later history after the same restore took back the same transactions, not those of a server in between.
    server.commit(2)
    server.archiver().look()
    assert route_of(server, restored).end.kind is EndKind.LOST_IN_FAILOVER
    restored.reset()
    restored.archiver(among=server.archive()).look()
    assert [one.taken_back for one in server.archive().load().incarnations if one.restore] == [f"{server.uuid}:1-5"] * 3
