"""A host knows what it stored and what it removed, whatever the repository says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.unit.support import world as worlds
from tests.unit.support.archived_server import Server
from tests.unit.support.stored_backups import Site
from tests.unit.support.world import Died, World
from zsnapdb.base.errors import NotFound
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.record.record_file import BACKUPS, HostRecord, folder_name
from zsnapdb.jobs.repository import prune
from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
from zsnapdb.planning.repository.host_backup_record import (
    ArchivedBinlogs,
    ArchivedPosition,
    RemovedBackup,
    StoredFinding,
    StoredKind,
    judge_archive,
)
from zsnapdb.repository import layout
from zsnapdb.repository.repository import Repository


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with worlds.made(tmp_path) as made:
        yield made


def new_site(folder: Path, keep: str) -> Site:
    for name in ("store", "run"):
        (folder / name).mkdir()
    return Site(folder / "store", keep=keep)


def record_of(world: World) -> HostRecord:
    record = HostRecord.of(world.instance, world.repository)
    assert record is not None
    return record


def kinds(world: World) -> list[StoredKind]:
    return [finding.kind for finding in found(world)]


def found(world: World) -> tuple[StoredFinding, ...]:
    known = world.instance.summaries(world.repository).backups
    return host_backup_record.check(world.instance, world.repository, known, ()).findings


def test_a_backup_is_recorded_once_it_is_stored(world: World) -> None:
    first, second = (world.backup().manifest for _ in range(2))
    stored = record_of(world).backups().stored
    assert [backup.backup_id for backup in stored] == [first.backup_id, second.backup_id]
    assert {v.role: v.guid for v in stored[1].volumes} == second.guids()
    assert stored[1].gtids == "0-1-2"
    assert found(world) == ()


def test_each_document_has_a_number_of_its_own_also_after_a_run_that_stored_nothing(world: World) -> None:
    first, second = (world.backup().manifest for _ in range(2))
    assert (first.sequence, second.sequence) == (1, 2)
    assert host_backup_record.next_sequence(world.instance, world.repository, [1, 2]) == 3
    assert world.backup().manifest.sequence == 4
    assert [backup.sequence for backup in record_of(world).backups().stored] == [1, 2, 4]
    assert host_backup_record.next_sequence(world.instance, world.repository, [900, 2**53 - 1]) == 901


def test_a_backup_that_ended_after_its_manifest_is_recorded_by_the_next_run(world: World) -> None:
    world.backup()
    before = len(world.steps)
    world.backup()
    steps = world.steps[before:]
    world.rise()
    # The process dies at the first step after the next manifest is stored.
    world.die_at = 2 + next(n for n, step in enumerate(steps) if step.startswith("put") and "/manifests/" in step)
    with pytest.raises(Died):
        world.backup()
    assert len(world.ids()) == 3
    world.rise()
    world.backup()
    assert [backup.backup_id for backup in record_of(world).backups().stored] == world.ids()


@pytest.mark.parametrize("which", [0, -1])
def test_a_backup_that_disappeared_from_the_repository_is_missed(world: World, which: int) -> None:
    ids = [world.backup().manifest.backup_id for _ in range(3)]
    world.repository.delete(layout.manifest("main", ids[which]))
    (finding,) = found(world)
    assert (finding.kind, finding.backups) == (StoredKind.BACKUPS_MISSING, (ids[which],))
    assert "lacks 1 backup that this host stored: deleted, hidden, or rolled back" in finding.text


def test_without_a_record_the_snapshots_of_this_host_say_what_it_stored(world: World) -> None:
    ids = [world.backup().manifest.backup_id for _ in range(2)]
    (record_of(world).folder / "backups.json").unlink()
    world.repository.delete(layout.manifest("main", ids[1]))
    (finding,) = found(world)
    assert finding.backups == (ids[1],)


def test_a_backup_that_was_removed_here_or_forgotten_is_not_missed(world: World) -> None:
    ids = [world.backup().manifest.backup_id for _ in range(2)]
    host_backup_record.note_removed(world.instance, world.repository, [RemovedBackup(backup_id=ids[0], guids=())])
    world.repository.delete(layout.manifest("main", ids[0]))
    assert found(world) == ()
    assert [backup.backup_id for backup in record_of(world).backups().stored] == [ids[1]]


def test_another_repository_at_the_same_address_is_named(world: World) -> None:
    world.backup()
    newest = world.backup().manifest.backup_id
    before = world.repository.id
    for item in list(world.local.list("")):
        world.local.delete(item.key)
    (world.folder / "journal").mkdir(exist_ok=True)
    with pytest.raises(NotFound, match="this host stored 2 backups of main there"):
        world.backup()
    assert list(world.local.list("")) == []
    Repository.open_or_create(world.local, "", "0123456789abcdef", world.instance.keyring())
    world.backup()
    assert world.repository.id != before
    (finding,) = [f for f in found(world) if f.kind is StoredKind.OTHER_REPOSITORY]
    assert before in finding.text
    assert newest in finding.text


def test_a_record_that_cannot_be_read_is_named_and_set_aside_by_the_next_backup(world: World) -> None:
    world.backup()
    file = record_of(world).folder / "backups.json"
    file.write_text(file.read_text().replace('"guid"', '"gu/id"', 1))
    assert kinds(world) == [StoredKind.RECORD_UNREADABLE]
    world.backup()
    assert found(world) == ()
    assert (file.parent / "backups.json.unreadable").exists()


def test_a_record_that_cannot_be_written_is_a_warning_and_the_backup_is_stored(world: World) -> None:
    (world.folder / "stored").write_text("")
    stored = world.backup()
    assert stored.manifest.backup_id in world.ids()
    assert any("record of its stored backups" in warning for warning in stored.warnings)


@pytest.mark.parametrize("repository_id", ["../../etc", "a/b", "", ".", "x" * 300])
def test_an_id_of_a_repository_leads_out_of_no_folder(repository_id: str) -> None:
    name = folder_name(repository_id)
    assert "/" not in name
    assert not name.startswith(".")
    assert 0 < len(name) < 70


def test_a_prune_records_what_it_removes_and_nothing_of_it_is_missed(tmp_path: Path) -> None:
    site = new_site(tmp_path, "last = 1")
    names = site.fill([None, None, None])
    repository = site.instance().open_repository()
    done = prune.prune(site.instance(), local=NOTHING_LOCAL)
    assert set(done.removed) == set(names[:2])
    record = HostRecord.of(site.instance(), repository)
    assert record is not None
    assert [backup.backup_id for backup in record.backups().stored] == names[2:]
    assert prune.plan(site.instance(), local=NOTHING_LOCAL).missing == ()


def test_a_prune_tells_that_a_backup_disappeared(tmp_path: Path) -> None:
    site = new_site(tmp_path, "last = 2")
    names = site.fill([None, None, None])
    repository = site.instance().open_repository()
    repository.delete(layout.manifest("main", names[0]))
    repository.delete(layout.manifest("main", names[2]))
    expired, needed = StoredKind.EXPIRED_MISSING, StoredKind.BACKUPS_MISSING
    findings = prune.plan(site.instance(), local=NOTHING_LOCAL).missing
    assert {finding.kind: finding.backups for finding in findings} == {needed: (names[2],), expired: (names[0],)}
    assert [finding.is_alarming for finding in findings] == [True, False]


def test_the_record_of_a_repository_does_not_speak_of_its_copy(tmp_path: Path) -> None:
    site = new_site(tmp_path, "last = 3")
    site.fill([None])
    assert HostRecord.of(site.instance("there"), site.instance().open_repository()) is None


def test_an_archive_that_was_rolled_back_is_named(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.commit(3)
    archiver = server.archiver()
    archiver.look()
    before = list(host_backup_record.positions(server.load()))
    server.commit(2)
    archiver.look()
    (file,) = (tmp_path / "stored").glob("main/*/archive.json")
    recorded = ArchivedPosition.model_validate_json(file.read_bytes())
    assert recorded == list(host_backup_record.positions(server.load()))[-1]
    assert judge_archive(recorded, host_backup_record.positions(server.load())) is None
    short = judge_archive(recorded, before)
    assert short is not None
    assert short.kind is StoredKind.ARCHIVE_SHORT
    assert f"the repository's archive ends at {before[-1].file}:{before[-1].end}" in short.text


def test_recorded_binlog_with_an_unknown_field_is_refused() -> None:
    binlog = {"incarnation": "20260101T000000Z-0001", "file": "binlog.000001", "digest": "a" * 64}
    known = ArchivedBinlogs.model_validate_json(json.dumps({"files": [binlog]}))
    assert ArchivedBinlogs.model_validate_json(known.model_dump_json()) == known
    for wrong in ({**binlog, "new": 1}, {**binlog, "digest": "?"}):
        with pytest.raises(ValidationError):
            ArchivedBinlogs.model_validate_json(json.dumps({"files": [wrong]}))


def test_what_is_stored_while_a_command_reads_is_not_missed(tmp_path: Path) -> None:
    site = new_site(tmp_path, "last = 9")
    site.fill([None, None])
    repository = site.instance().open_repository()
    stored = site.instance().summaries(repository).backups
    listed_before = stored[:1]
    assert host_backup_record.check(site.instance(), repository, listed_before, ()).findings == ()
    repository.delete(layout.manifest("main", stored[1].backup_id))
    (finding,) = host_backup_record.check(site.instance(), repository, listed_before, ()).findings
    assert (finding.kind, finding.backups) == (StoredKind.BACKUPS_MISSING, (stored[1].backup_id,))


def test_an_account_that_may_not_read_the_record_is_told_so_without_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = new_site(tmp_path, "last = 9")
    site.fill([None])
    repository = site.instance().open_repository()
    stored = site.instance().summaries(repository).backups
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == BACKUPS:
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (finding,) = host_backup_record.check(site.instance(), repository, stored, ()).findings
    assert (finding.kind, finding.is_alarming) == (StoredKind.NOT_COMPARED, False)
