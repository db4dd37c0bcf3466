"""A copy has the same backups. An interrupted copy lists no incomplete backup, and the next run continues."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.binlog_archive import ID, INCARNATION, NAME, add, rotated
from tests.unit.support.drilled import evidence
from tests.unit.support.stored_backups import DyingStore, Killed, Site, dies, guid_of
from zsnapdb.base.errors import ConfigError, NotFound, RepositoryError, UsageError
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import copy as job
from zsnapdb.jobs.repository import verify
from zsnapdb.jobs.repository.copy import CopyResult
from zsnapdb.planning.binlog.route_elements import CompleteUntil
from zsnapdb.planning.repository.host_backup_record import LocalBackup
from zsnapdb.repository import backup_marks, drills, layout
from zsnapdb.repository.binlog_archive import BinlogArchive, remove_unneeded
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.stored_document import with_digest
from zsnapdb.repository.verifications import Depth
from zsnapdb.store.local import LocalStore


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    (tmp_path / "store-there").mkdir()
    return Site(tmp_path / "store")


def copy(site: Site) -> CopyResult:
    return job.copy(site.instance(), site.instance("there"))


def content(site: Site, where: str = "") -> dict[str, bytes]:
    store = LocalStore(Path(f"{site.folder}{where}"))
    return {item.key: store.get(item.key) for item in store.list("") if not item.key.endswith(".lock")}


def there(site: Site) -> LocalStore:
    return LocalStore(Path(f"{site.folder}-there"))


def test_the_copy_is_the_same_objects_and_is_whole(site: Site) -> None:
    names = site.fill([None, 0, 1, None])
    result = copy(site)
    assert sorted(result.copied) == names
    assert content(site, "-there") == content(site)
    assert verify.verify(site.instance("there"), Depth.READ).is_whole


def test_a_plan_changes_nothing(site: Site) -> None:
    site.fill([None, 0])
    planned = job.plan(site.instance(), site.instance("there"))
    assert len(planned.missing) == 2
    assert content(site, "-there") == {}


def test_only_what_is_missing_is_copied(site: Site) -> None:
    site.fill([None, 0])
    assert copy(site).size > 0
    again = copy(site)
    assert (again.copied, again.size, again.plan.there) == ((), 0, 2)


def test_what_is_an_increment_is_copied_after_its_base(site: Site) -> None:
    names = site.fill([None, 2, 0])
    assert copy(site).copied == (names[0], names[2], names[1])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_change_nothing_half_is_listed_and_the_next_run_goes_on(site: Site, after: bool) -> None:
    site.fill([None, 0])
    whole = content(site)
    changes = len(whole)
    for moment in range(1, changes + 1):
        for key in [item.key for item in there(site).list("")]:
            there(site).delete(key)
        if moment < changes:
            with site.opening(dies(moment, after=after), "there"), pytest.raises(Killed):
                copy(site)
        if layout.MARKER in content(site, "-there"):
            there(site).delete("main/writer.lock")
            result = verify.verify(site.instance("there"), Depth.READ)
            assert result.is_whole
            for key in [item.key for item in there(site).list("main/checks/")]:
                there(site).delete(key)
        copy(site)
        assert content(site, "-there") == whole


def test_a_chunk_that_is_there_but_wrong_is_copied_again(site: Site) -> None:
    (name,) = site.fill([None])
    copy(site)
    key = layout.chunk("main", name, "data", 1)
    there(site).delete(layout.manifest("main", name))
    there(site).put(key, b"x" * len(content(site)[key]))
    result = copy(site)
    assert result.size == len(content(site)[key])
    assert content(site, "-there") == content(site)


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_damaged_backup_is_left_out_with_its_increments_and_told(site: Site, how: str) -> None:
    names = site.fill([None, 0, 1, None])
    store, key = LocalStore(site.folder), layout.chunk("main", names[1], "data", 2)
    body = store.get(key)
    store.delete(key)
    if how == "flipped":
        store.put(key, body[:-1] + bytes([body[-1] ^ 1]))
    result = copy(site)
    assert not result.is_whole
    assert sorted(result.copied) == [names[0], names[3]]
    assert set(result.failed) == {names[1], names[2]}
    assert sorted(site.instance("there").open_repository().backup_ids("main")) == [names[0], names[3]]


def test_an_unreadable_manifest_is_told_and_the_others_are_copied(site: Site) -> None:
    names = site.fill([None, 0, None])
    LocalStore(site.folder).put(layout.manifest("main", names[0]), b"{")
    result = copy(site)
    assert (result.copied, list(result.plan.unreadable), list(result.plan.left_out)) == (
        (names[2],),
        [names[0]],
        [names[1]],
    )


def test_what_the_second_repository_would_prune_at_once_is_not_copied(site: Site) -> None:
    names = site.fill([None, None, None])
    source, target = site.instance(), site.instance("there")
    rules = site.instance().settings.keep
    assert rules is not None
    short = target.repository.model_copy(update={"keep": rules.model_copy(update={"last": 1})})
    result = job.copy(source, replace(target, repository=short))
    assert result.copied == (names[2],)
    assert set(result.plan.left_out) == set(names[:2])


def test_a_repository_of_its_own_is_never_copied_into(site: Site) -> None:
    site.fill([None])
    site.instance("there").open_or_create_repository()
    before = content(site, "-there")
    with pytest.raises(ConfigError, match="not a copy of"):
        copy(site)
    assert content(site, "-there") == before


def test_a_repository_is_not_copied_to_itself(site: Site) -> None:
    site.fill([None])
    with pytest.raises(UsageError, match="are the same repository"):
        job.copy(site.instance(), site.instance())


def test_a_missing_folder_is_not_a_new_repository(site: Site) -> None:
    site.fill([None])
    Path(f"{site.folder}-there").rmdir()
    with pytest.raises(NotFound, match="does not exist"):
        copy(site)


def test_another_backup_with_the_same_id_is_never_overwritten(site: Site) -> None:
    (name,) = site.fill([None])
    key = layout.manifest("main", name)

    def meanwhile(what: str, written: str) -> None:
        if written == key:
            there(site).put(key, b"another")

    site.wraps["there"] = lambda store: DyingStore(store, meanwhile)
    result = copy(site)
    assert (list(result.failed), result.is_whole) == ([name], False)
    assert "read back different" in result.failed[name]
    assert there(site).get(key) == b"another"


def test_planted_manifest_is_no_copy_and_stops_no_other(site: Site) -> None:
    names = site.fill([None] * 2)
    key = layout.manifest("main", names[0])
    line = site.instance().open_repository().get(key).partition(b"\n")[0]
    planted = with_digest(line.replace(b'"zfs_version":"', b'"zfs_version":"planted '))
    assert planted.partition(b"\n")[0] != line
    copy(site)
    there(site).delete(layout.manifest("main", names[1]))
    there(site).put(key, planted)
    result = copy(site)
    assert (list(result.failed), result.copied, result.is_whole) == ([names[0]], (names[1],), False)
    assert there(site).get(key) == planted


def test_planted_binlog_is_no_copy(site: Site) -> None:
    here = active(site)
    copy(site)
    archive(site, "there").commit(rotated(archive(site, "there"), BINLOG[:400]))
    assert list(copy(site).binlogs.failed) == [NAME]
    here.commit(rotated(here, BINLOG))
    assert list(copy(site).binlogs.failed) == [NAME]


def test_copies_of_backups_that_only_snapshots_prove_are_not_recorded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = site.fill([None] * 2)
    shutil.rmtree(site.host.records)
    local = [LocalBackup(name, {"data": guid_of(at, 0), "parent": guid_of(at, 1)}) for at, name in enumerate(names)]
    monkeypatch.setattr(host_backup_record, "_local_backups", lambda *_: local)
    assert copy(site).copied == tuple(names)
    monkeypatch.setattr(host_backup_record, "_local_backups", lambda *_: [])
    second = site.instance("there")
    assert not host_backup_record.checked_backups(second, second.open_repository())[1].provenance.proofs


def test_a_store_that_refuses_ends_it_with_its_error(site: Site) -> None:
    site.fill([None])

    class Denied(DyingStore):
        def get(self, key: str) -> bytes:
            if "/chunks/" in key:
                raise RepositoryError("denied")
            return super().get(key)

    site.wraps = {"here": Denied, "there": Denied}
    with pytest.raises(RepositoryError, match="denied"):
        copy(site)
    assert not list(there(site).list("main/manifests/"))


BINLOG = bytes(range(200)) * 5


def archive(site: Site, where: str | None = None) -> BinlogArchive:
    return BinlogArchive(site.instance(where).open_repository(), "main")


def active(site: Site) -> BinlogArchive:
    site.fill([None])
    here = archive(site)
    here.begin(INCARNATION.model_copy(update={"repository_id": here.repository.id}))
    add(here, 0, BINLOG[:400], number=6)
    return here


def bodies(archive: BinlogArchive) -> list[bytes]:
    return [b"".join(bytes(part) for part in archive.plain(file)) for file in archive.load().files]


def test_a_active_binlog_is_copied_as_far_as_it_goes_and_then_whole(site: Site) -> None:
    here = active(site)
    assert copy(site).binlogs.copied == [NAME]
    assert content(site, "-there") == content(site)
    assert copy(site).binlogs.copied == []
    add(here, 400, BINLOG[400:], number=7)
    assert copy(site).binlogs.copied == [NAME]
    assert bodies(archive(site, "there")) == [BINLOG]
    here.commit(rotated(here, BINLOG))
    (file,) = here.load().files
    remove_unneeded(here, file)
    assert copy(site).binlogs.copied == [NAME]
    assert archive(site, "there").load() == here.load()
    assert content(site, "-there") == content(site)


def test_until_when_the_archive_is_complete_is_copied_and_replaced(site: Site) -> None:
    here = active(site)
    here.note_complete(CompleteUntil(ID, NAME, 400, 5))
    copy(site)
    assert content(site, "-there") == content(site)
    here.note_complete(CompleteUntil(ID, NAME, 400, 9))
    assert copy(site).is_whole
    assert archive(site, "there").load().state.complete == (CompleteUntil(ID, NAME, 400, 9),)
    assert content(site, "-there") == content(site)
    assert verify.verify(site.instance("there"), Depth.LISTED).is_whole


def test_a_damaged_binlog_is_told_and_the_backups_are_copied(site: Site) -> None:
    here = active(site)
    (file,) = here.load().files
    key = here.segment_body_key(ID, file.segments[0])
    LocalStore(site.folder).put(key, b"x" * file.segments[0].chunk.stored_size)
    result = copy(site)
    assert (len(result.copied), result.is_whole, result.binlogs.copied) == (1, False, [])
    assert "do not have the SHA-256" in result.binlogs.failed[NAME]
    assert archive(site, "there").load().files == ()


def test_every_copy_takes_missing_pins_of_copied_backups_and_changes_none(site: Site) -> None:
    names = site.fill([None, None])
    first = site.instance().open_repository()
    backup_marks.pin(first, "main", names[0], "audit")
    copy(site)
    second = site.instance("there").open_repository()
    backup_marks.pin(second, "main", names[0], "the year")
    backup_marks.pin(first, "main", names[1], "after the first copy")
    first.put(layout.pin("main", "20261101T000000Z-0000"), b"of a backup that the second repository lacks")
    copy(site)
    pins = {name: pin.reason for name, pin in backup_marks.pins(second, "main").items()}
    assert pins == {names[0]: "the year", names[1]: "after the first copy"}


def test_after_a_move_no_evidence_of_a_drill_is_missing(site: Site) -> None:
    site.fill([None])
    here, first = site.instance(), site.instance().open_repository()
    for number, drill_id in enumerate(("20261122T000001Z-0001", "20261122T000002Z-0002", "20261122T000003Z-0003")):
        drills.write(first, evidence(Outcome.PASSED, first.id, drill_id))
        host_backup_record.note_drilled(here, first, drill_id)
        if number < 2:
            copy(site)
    first.put(layout.drill("main", "20261122T000004Z-0004", 9), b"of an unknown writer")
    copy(site)
    second = site.instance("there").open_repository()
    own = host_backup_record.drilled_here(here, first)
    assert len(own) == 3
    past = drills.past(second, "main", 10, own)
    assert (tuple(one.drill_id for one in past.read), past.unreadable, past.missing) == (own, (), ())
