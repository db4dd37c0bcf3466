"""A restart of MariaDB under another server_id is no new history; a server that was set back has one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.unit.support.archived_server import Server
from tests.unit.support.binlog_file import ROTATE, File
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.gtid import GtidPosition
from zsnapdb.jobs.binlog.archive_round import Round
from zsnapdb.jobs.binlog.archiver import Archiver
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource
from zsnapdb.mysql.binlog.events import fingerprint
from zsnapdb.planning.binlog.failover_history import repeated_gtids
from zsnapdb.planning.binlog.route import NEWEST, BackupPoint, EndKind, Route, follow


class MariaDb(Server):
    """A server of MariaDB that is restarted under other server_ids."""

    def __init__(self, folder: Path) -> None:
        self.server_id, self.head = 1, (0, 0, 0)
        super().__init__(folder)

    def rotate(self) -> None:
        if self.files:
            self.newest.add(ROTATE, struct.pack("<Q", 4) + b"binlog")
            self.newest.data[21] &= ~1
        self.number += 1
        self.clock += 10
        before = (self.head,) if self.head[2] else ()
        opened = File(version=b"11.8.6-MariaDB", when=self.clock, server=self.server_id).gtid_list(*before)
        self.files[f"binlog.{self.number:06d}"] = opened
        self.write()

    def commit(self, count: int = 1, size: int = 80) -> None:
        for _ in range(count):
            self.clock += 1
            self.executed += 1
            self.newest.when = self.clock
            self.newest.mariadb_transaction(self.executed, server=self.server_id)
            self.head = (0, self.server_id, self.executed)
        self.write()

    def restart(self, server_id: int) -> None:
        """Restart the server under this server_id."""
        self.server_id = server_id
        self.rotate()

    def archives(self) -> Archiver:
        made = self.archiver()
        source = BinlogSource(
            Flavour.MARIADB, None, self.server_id, self.folder / "binlog.index", self.folder, self.folder
        )
        return Archiver(made._instance, self.archive(), source)

    def look(self) -> Round:
        return self.archives().look()

    def point(self) -> BackupPoint:
        """Return the position of a backup that is made now."""
        name = f"binlog.{self.number:06d}"
        with (self.folder / name).open("rb") as file:
            opened = self.archives()._files
            opened.list()
            proof = fingerprint(file, opened.opening(name).head.end or 0)
        return BackupPoint(
            "b",
            self.clock * 1_000_000,
            self.clock * 1_000_000,
            f"server_id {self.server_id}",
            BinlogCoordinates(name, len(self.newest.data)),
            GtidPosition.parse("-".join(map(str, self.head))),
            Flavour.MARIADB,
            proof,
        )

    def route(self, point: BackupPoint) -> Route:
        archive = self.load()
        return follow(point, archive.files, archive.state)


@pytest.fixture
def maria(tmp_path: Path) -> MariaDb:
    return MariaDb(tmp_path)


@pytest.mark.parametrize("unarchived", [0, 2], ids=["all was archived", "the last transactions were not"])
def test_a_restart_under_another_server_id_and_back_is_one_history(maria: MariaDb, unarchived: int) -> None:
    maria.commit(3)
    maria.rotate()
    maria.commit(2)
    point = maria.point()
    maria.look()
    for server_id in (7, 1, 9):
        maria.commit(unarchived)
        maria.restart(server_id)
        maria.commit(2)
        result = maria.look()
        assert (result.new_incarnation, result.gaps) == (None, ())
    route = maria.route(point)
    assert (route.end, str(route.reached)) == (NEWEST, f"0-9-{maria.executed}")
    assert len(maria.load().incarnations) == 1
    assert repeated_gtids(maria.load().files) == ()
    later = maria.route(maria.point())
    assert (later.end, [file.name for file in later.files]) == (NEWEST, ["binlog.000005"])


def test_a_backup_after_set_global_server_id_is_followed_in_the_binlog_with_the_old_one(maria: MariaDb) -> None:
    maria.commit(3)
    maria.look()
    maria.server_id = 7
    maria.commit(2)
    point = maria.point()
    maria.commit(2)
    assert maria.look().new_incarnation is None
    route = maria.route(point)
    assert (route.end, str(route.reached)) == (NEWEST, "0-7-7")


@pytest.mark.parametrize(
    ("server_ids", "kind"),
    [
        ((1, 7), EndKind.UNPROVEN_FAILOVER),
        ((7, 7), EndKind.SET_BACK),
        ((7, 9), EndKind.UNPROVEN_FAILOVER),
    ],
)
def test_a_server_that_was_set_back_has_a_new_history_under_whatever_server_id(
    maria: MariaDb, server_ids: tuple[int, int], kind: EndKind
) -> None:
    maria.commit(3)
    maria.rotate()
    maria.commit(2)
    maria.restart(server_ids[0])
    maria.commit(2)
    state = maria.saved()
    head = maria.head
    maria.commit(5)
    point = maria.point()
    maria.look()
    maria.head, maria.server_id = head, server_ids[1]
    maria.set_back(state)
    maria.commit(2)
    assert maria.look().new_incarnation is not None
    route = maria.route(point)
    assert (route.end.kind, str(route.reached)) == (kind, f"0-{server_ids[0]}-12")
    assert maria.route(maria.point()).end == NEWEST


@pytest.mark.parametrize("server_id", [1, 8])
def test_after_a_rewind_was_given_up_routes_go_on_in_a_new_history(maria: MariaDb, server_id: int) -> None:
    """The restored server ran for a while, under a server_id of its own, before the old files were put back."""
    maria.commit(3)
    maria.rotate()
    maria.commit(2)
    state, head = maria.saved(), maria.head
    maria.commit(5)
    point = maria.point()
    maria.look()
    old, old_head = maria.saved(), maria.head
    maria.head, maria.server_id = head, 7
    maria.set_back(state)
    maria.commit(2)
    maria.look()
    maria.head, maria.server_id = old_head, server_id
    maria.set_back(old)
    maria.commit(2)
    result = maria.look()
    assert ("in production again" in str(result.new_incarnation), result.gaps) == (True, ())
    for later in range(2):
        route = maria.route(point)
        assert (route.end.kind, str(route.reached)) == (EndKind.NEWEST, f"0-{server_id}-{12 + later}")
        assert maria.route(maria.point()).end == NEWEST
        maria.commit()
        assert maria.look().new_incarnation is None
