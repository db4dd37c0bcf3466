"""After a restore put production back, `latest` is of the history that production has now, or it is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.manifests import manifest
from zsnapdb.base.errors import HistoryError, ServerError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.binlog_spans import LocalBinlogs
from zsnapdb.jobs.record import host_backup_record, production_restores
from zsnapdb.jobs.restore import restore_inputs
from zsnapdb.mysql.process import discovery
from zsnapdb.planning.repository.known_backups import Provenance
from zsnapdb.planning.repository.production_restores import ProductionRestore, ProductionRestoreRecord
from zsnapdb.repository.binlog_archive_contents import load
from zsnapdb.zfs import datasets, snapshots, version
from zsnapdb.zfs.datasets import Property

RESTORE = "20231114T230000Z-00aa"
POOLS = {"tank": manifest().pool_guid, "other": 2}
"""The GUID of each pool by name."""


@pytest.fixture
def marks() -> dict[str, Property]:
    """The mark of each of production's datasets that is there."""
    return {}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: dict[str, Property]) -> ProtectedServer:
    """A server with a backup before and one after the point to which it was put back without another backup."""
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    own = protected.server

    def own_binlogs(*_: object) -> LocalBinlogs:
        return LocalBinlogs({name: own.folder / name for name in own.files})

    monkeypatch.setattr(LocalBinlogs, "of", own_binlogs)
    monkeypatch.setattr(datasets, "exists", lambda name: name == "tank" or name in marks)
    monkeypatch.setattr(version, "pool_guid", lambda pool: POOLS[pool])
    monkeypatch.setattr(
        datasets, "properties_of", lambda names, keys: {name: dict.fromkeys(keys, marks[name]) for name in names}
    )
    own.commit(2)
    protected.back_up()
    own.look()
    state = own.saved()
    own.commit(2)
    protected.back_up()
    own.commit()
    own.look()
    own.set_back(state)
    return protected


def put_back(protected: ProtectedServer, pool: str = "tank") -> None:
    made = ProductionRestore(
        restore_id=RESTORE, base_pool=POOLS["tank"], base_group=1, pool=POOLS[pool], group=2 if pool == "tank" else 1
    )
    production_restores.note_production_restore(protected.instance(), made)


def test_latest_is_nothing_that_was_taken_back(server: ProtectedServer) -> None:
    before, after = server.backups
    assert server.plan().backup_id == after
    put_back(server)
    with pytest.raises(HistoryError, match=f"restore {RESTORE} put main back") as refused:
        server.plan()
    assert "--accept-older" in refused.value.hint
    older = server.plan(accepts_older=True)
    assert (older.backup_id, older.replays) == (before, ())
    assert any(after in note for note in older.point.notes)
    alone = server.plan("latest-backup")
    assert (alone.backup_id, alone.replays) == (before, ())


def test_what_was_taken_back_is_reached_by_its_name_and_time(server: ProtectedServer) -> None:
    put_back(server)
    after = server.plan(server.backups[1])
    assert any("a history that production left" in note for note in after.point.notes)
    history = load(server.instance().open_repository(), "main").incarnations[-1].id
    assert server.plan(history=history).backup_id == server.backups[1]


def test_latest_of_a_clone_is_nothing_that_was_taken_back(server: ProtectedServer) -> None:
    put_back(server)
    instance = server.instance()
    chosen = restore_inputs.newest_backup(instance, instance.open_repository(), accepts_older=False)
    assert chosen == server.backups[0]


def test_archived_binlogs_of_the_new_history_are_followed(server: ProtectedServer) -> None:
    put_back(server)
    server.server.commit()
    server.server.look()
    present = load(server.instance().open_repository(), "main").incarnations[-1].id
    for accepts_older in (False, True):
        planned = server.plan(accepts_older=accepts_older)
        assert planned.backup_id == server.backups[0]
        assert {log.incarnation for step in planned.replays for log in step.logs} == {present}


def test_a_backup_since_then_is_the_latest(server: ProtectedServer) -> None:
    put_back(server)
    server.server.commit()
    newer = server.back_up()
    assert server.plan().backup_id == newer, "its binlogs are not archived, the others are of another history"
    server.server.commit()
    server.server.look()
    planned = server.plan()
    assert (planned.backup_id, len(planned.replays)) == (newer, 1)


def test_a_restore_that_was_undone_by_hand_does_not_count(server: ProtectedServer, marks: dict[str, Property]) -> None:
    put_back(server)
    places = ("tank/data", "tank/parent")
    marks.update(dict.fromkeys(places, Property(RESTORE, "local")))
    with pytest.raises(HistoryError):
        server.plan()
    marks.update(dict.fromkeys(places, Property(RESTORE, "inherited from tank")))
    assert server.plan().backup_id == server.backups[1]


@dataclass(frozen=True)
class RunningServer:
    """A session to a server whose process has a dataset."""

    peer: int = 17

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def value(self, _: str) -> str:
        return "/var/lib/mysql/"


@pytest.mark.parametrize(
    ("dataset", "latest"),
    [("tank/data", 1), ("other/restored", 0), (None, 0)],
    ids=["the old datasets were put back", "the restore is in place", "the server is down"],
)
def test_unconfigured_volumes_are_those_of_the_live_server(
    server: ProtectedServer,
    marks: dict[str, Property],
    monkeypatch: pytest.MonkeyPatch,
    dataset: str | None,
    latest: int,
) -> None:
    marks["tank/data"], marks["other/restored"] = Property("-", "-"), Property(RESTORE, "local")

    def session(_: Instance) -> RunningServer:
        if dataset is None:
            raise ServerError("the server is down", hint="start it")
        return RunningServer()

    monkeypatch.setattr(Instance, "session", session)
    monkeypatch.setattr(discovery, "is_server_program", lambda _: True)
    monkeypatch.setattr(production_restores, "working_dataset", lambda _: dataset)
    put_back(server, pool="other")
    instance = server.instance()
    unconfigured = {"volumes": None, "socket": instance.host.put_backs}
    instance = replace(instance, settings=instance.settings.model_copy(update=unconfigured))
    chosen = restore_inputs.newest_backup(instance, instance.open_repository(), accepts_older=False)
    assert chosen == server.backups[latest]


def test_a_record_that_cannot_be_read_is_reported(server: ProtectedServer) -> None:
    put_back(server)
    instance = server.instance()
    (instance.host.put_backs / "main.json").write_text("{")
    warned: list[str] = []
    repository = instance.open_repository()
    _, checked = restore_inputs.catalogue_of(instance, repository, None)
    warned += [finding.text for finding in checked.findings if finding.is_warning]
    assert any("put-back" in text for text in warned)


@pytest.fixture
def rolled_back(server: ProtectedServer, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    """The server after an operator rolled its datasets back by hand to the first backup."""
    volumes = dict.fromkeys(("data",), "tank/data")

    def known_states(_: object) -> tuple[frozenset[int], int | None]:
        return frozenset({1}), 1

    monkeypatch.setattr(datasets, "exists", lambda name: name in ("tank", *volumes.values()))
    monkeypatch.setattr(version, "pool_guid", lambda _: manifest().pool_guid)
    monkeypatch.setattr(snapshots, "known_states", known_states)
    monkeypatch.setattr(production_restores, "read_production_restores", lambda _: ProductionRestoreRecord())
    monkeypatch.setattr(host_backup_record, "_volumes", lambda *_: volumes)
    return server


def test_latest_after_zfs_rollback_is_not_the_abandoned_state(rolled_back: ProtectedServer) -> None:
    before, after = rolled_back.backups
    for point in ("latest", "latest-backup"):
        planned = rolled_back.plan(point)
        assert (planned.backup_id, planned.replays) == (before, ())
        assert any(after in note and "zfs rollback" in note for note in planned.point.notes)
    assert any("archived binlogs are not followed" in note for note in rolled_back.plan().point.notes)
    assert rolled_back.plan(after).backup_id == after


def test_backup_of_another_host_is_no_proof_of_a_rollback(
    rolled_back: ProtectedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the server made the newest backup. Production has no snapshot of it, because it never had its state."""
    before, after = rolled_back.backups
    instance, repository = rolled_back.instance(), rolled_back.instance().open_repository()
    host_backup_record.note_stored(instance, repository, *repository.digested_manifest("main", before))
    # As with a trusted signing key, this host knows all backups and binlogs.
    monkeypatch.setattr(Provenance, "unchosen", {})
    monkeypatch.setattr(host_backup_record, "known_archive", lambda _, __, archive: (archive, ()))
    planned = rolled_back.plan()
    assert planned.backup_id == before
    assert any(after in note and "or because another host made it" in note for note in planned.point.notes)
    assert planned.replays


def test_binlogs_after_zfs_rollback_are_followed(rolled_back: ProtectedServer) -> None:
    rolled_back.server.commit()
    rolled_back.server.look()
    present = load(rolled_back.instance().open_repository(), "main").incarnations[-1].id
    planned = rolled_back.plan()
    assert planned.backup_id == rolled_back.backups[0]
    assert {log.incarnation for step in planned.replays for log in step.logs} == {present}


@pytest.fixture
def abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    """A server that an operator rolled back behind archived binlogs. No backup was taken back, and none follows."""
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    own = protected.server

    def own_binlogs(*_: object) -> LocalBinlogs:
        return LocalBinlogs({name: own.folder / name for name in own.files})

    monkeypatch.setattr(LocalBinlogs, "of", own_binlogs)
    own.commit(2)
    protected.back_up()
    state = own.saved()
    own.rotate()
    own.commit(3)
    protected.look()
    own.set_back(state)
    return protected


@pytest.mark.parametrize("days", [0, 5])
def test_backup_after_zfs_rollback_is_latest_by_any_clock(abandoned: ProtectedServer, days: int) -> None:
    own = abandoned.server
    own.commit(2)
    own.clock -= days * 86_400
    newest = abandoned.back_up()
    own.clock += days * 86_400
    for accepts_older in (False, True):
        planned = abandoned.plan(accepts_older=accepts_older)
        assert (planned.backup_id, planned.replays) == (newest, ())
    assert any("archived binlogs are not followed" in note for note in planned.point.notes)
    abandoned.look()
    assert abandoned.plan().backup_id == newest


def test_archive_that_is_behind_a_backup_is_not_abandoned(abandoned: ProtectedServer) -> None:
    own = abandoned.server
    own.commit()
    abandoned.look()
    own.rotate()
    own.commit()
    newest = abandoned.back_up()
    own.remove(*[name for name in own.files if name != f"binlog.{own.number:06d}"])
    planned = abandoned.plan()
    assert planned.backup_id == newest
    assert not any("are not followed" in note for note in planned.point.notes)


@pytest.mark.parametrize("uuid", ["", "4f22ab58-82db-22f2-9f44-d91bb0530673"], ids=["same id", "new id"])
@pytest.mark.parametrize("days", [0, 5])
def test_archive_that_ends_before_the_newest_backup_is_not_newer_by_a_clock(
    abandoned: ProtectedServer, days: int, uuid: str
) -> None:
    own = abandoned.server
    own.commit(3)
    present, own.uuid = own.uuid, uuid or own.uuid
    abandoned.look()
    own.uuid = present
    own.clock -= days * 86_400
    own.rotate()
    own.commit()
    newest = abandoned.back_up()
    own.clock += days * 86_400
    planned = abandoned.plan()
    assert (planned.backup_id, planned.replays) == (newest, ())
    assert not any("are not followed" in note for note in planned.point.notes)
