"""A host that begins to sign goes on with what it stored before, and with nothing that others made up."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from tests.unit.support.archived_server import Server
from tests.unit.support.drilled import evidence
from tests.unit.support.pruning import forge, manifests, plan, prune
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import ConfigError, DamagedError, NotFound
from zsnapdb.config.settings import parse
from zsnapdb.jobs.health import evidence_records as log
from zsnapdb.jobs.record import host_backup_record
from zsnapdb.jobs.repository import adopt, inventory, protection_status, verify
from zsnapdb.jobs.restore import runbook as job
from zsnapdb.jobs.restore.plan import RestoreRequest
from zsnapdb.planning.repository.host_backup_record import RemovedBackup, StoredKind
from zsnapdb.report import runbook
from zsnapdb.repository import backup_marks, drills, layout, verifications
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.crypto_keys import SigningKey, write_secret
from zsnapdb.repository.drills import Outcome
from zsnapdb.repository.keyring import Keyring
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.verifications import Depth
from zsnapdb.zfs import datasets

FIRST = "20261122T000000Z-0001"


@pytest.fixture(autouse=True)
def _no_zfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "exists", lambda name: False)


@pytest.fixture
def names(site: Site) -> list[str]:
    """Five backups, a pin, a drill, a check and the evidence log of a host that did not sign and now does."""
    names = site.fill([None, 0, None, 2, None])
    instance, repository = site.instance(), site.instance().open_repository()
    drills.write(repository, evidence(Outcome.PASSED, repository.id))
    backup_marks.pin(repository, "main", names[0], "the year")
    host_backup_record.note_pinned(instance, repository, names[0])
    verifications.add(repository, "main", datetime.now(UTC), {names[4]: ()}, "verify --deep")
    for _ in range(2):
        with log.recorded(instance, "drill", ["drill"]):
            pass
    site.begin_to_sign()
    return names


def test_old_backups_are_whole_counted_and_pruned(site: Site, names: list[str]) -> None:
    state = protection_status.status(site.instance())
    assert (state.damaged, state.missing, state.newest and state.newest.backup_id) == ((), (), names[-1])
    assert verify.verify(site.instance(), Depth.READ).is_whole
    site.keep = "last = 1"
    assert set(prune(site).removed) == {names[1], names[2], names[3]}
    assert backup_marks.pins(site.instance().open_repository(), "main")[names[0]].reason == "the year"


def test_old_drills_findings_and_evidence_are_believed(site: Site, names: list[str]) -> None:
    repository = site.instance().open_repository()
    (drill,) = drills.past(repository, "main", 9).read
    assert drill.drill_id == FIRST
    assert verifications.read(repository, "main").whole_since(names[4], Depth.READ) is not None
    with log.recorded(site.instance(), "drill", ["drill"]):
        pass
    read = log.read(site.instance())
    assert (len(read.believed), read.findings) == (len(read.records), ())
    assert all(one.record for one in log.read_page(site.instance(), 0, 1).records)


def test_evidence_before_the_keys_that_somebody_rewrote_is_found(site: Site, names: list[str]) -> None:
    repository = site.instance().open_repository()
    with log.recorded(site.instance(), "drill", ["drill"]):
        pass
    key = layout.evidence("main", 1)
    body = repository.get(key).replace(b'"exit_code":0', b'"exit_code":9').partition(b"\n")[0] + b"\n"
    repository.overwrite(key, body)
    assert log.read(site.instance()).findings


def test_made_up_unsigned_backups_are_foreign_and_block_nothing(site: Site, names: list[str]) -> None:
    made_up = [forge(site, names[-1], suffix) for suffix in ("aaaa", "bbbb", "cccc")]
    state = protection_status.status(site.instance())
    assert state.damaged == ()
    (finding,) = [one for one in state.missing if one.kind is StoredKind.FOREIGN]
    assert finding.backups == tuple(made_up)
    assert inventory.detail(site.instance(), "latest").entry.manifest.backup_id == names[-1]
    with pytest.raises(DamagedError, match="is not signed"):
        inventory.detail(site.instance(), made_up[0])
    site.keep = "last = 2"
    assert set(plan(site).provenance.foreign) == set(made_up)
    assert prune(site).removed == (names[1],)
    assert set(made_up) < set(manifests(site))
    assert adopt.plan(site.instance()).adopted == ()


def test_old_backup_that_somebody_rewrote_is_named_and_kept(site: Site, names: list[str]) -> None:
    repository = site.instance().open_repository()
    key = layout.manifest("main", names[2])
    repository.overwrite(key, repository.get(key).partition(b"\n")[0].replace(b'"zfs_version":"', b'"zfs_version":"x'))
    site.keep = "last = 1"
    result = prune(site)
    (finding,) = [one for one in result.plan.missing if one.kind is StoredKind.REWRITTEN]
    assert (finding.backups, finding.is_alarming) == ((names[2],), True)
    assert names[2] in manifests(site)


def test_prune_that_was_killed_before_the_keys_goes_on(site: Site, names: list[str]) -> None:
    instance, repository = site.instance(), site.instance().open_repository()
    record = host_backup_record.record_of(instance, repository)
    gone = [one for one in record.backups().stored if one.backup_id == names[1]]
    guids = tuple(volume.guid for volume in gone[0].volumes)
    removed = RemovedBackup(backup_id=names[1], guids=guids)
    host_backup_record.note_removed(instance, repository, [removed])
    assert names[1] not in instance.summaries(repository).unread
    host_backup_record.note_removed(instance, repository, [removed.model_copy(update={"acknowledged": True})])
    shutil.rmtree(site.host.cache)
    assert names[1] in site.instance().summaries(site.instance().open_repository()).foreign


def test_rebuilt_host_with_a_new_key_adopts_what_was_not_signed(site: Site, names: list[str]) -> None:
    made_up = forge(site, names[-1], "aaaa")
    shutil.rmtree(site.host.records)
    shutil.rmtree(site.host.cache, ignore_errors=True)
    assert set(plan(site).provenance.foreign) == {*names, made_up}
    planned = adopt.plan(site.instance())
    assert [backup.backup_id for backup in planned.adopted] == names
    assert set(planned.documents) == {"drills", "checks", "pins"}
    adopt.adopt(site.instance(), planned)
    assert adopt.plan(site.instance()).is_empty
    assert set(plan(site).provenance.foreign) == {made_up}
    assert drills.past(site.instance().open_repository(), "main", 9).read
    assert log.read(site.instance()).findings == ()
    with pytest.raises(NotFound):
        adopt.plan(site.instance(), [names[0]])


@pytest.fixture
def protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedServer:
    """A server with a backup, a rotated binlog and an active one in segments, on a host that did not sign."""
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    server = protected.server
    server.commit(3)
    protected.look()
    protected.back_up_from_here()
    server.commit(2)
    protected.look()
    server.rotate()
    server.commit(2)
    protected.look()
    server.commit(1)
    protected.look()
    return protected


def test_old_archive_leads_as_far_as_before(protected: ProtectedServer) -> None:
    before = protected.status()
    assert (before.missing, len(before.window.ranges)) == ((), 1)
    protected.site.begin_to_sign()
    after = protected.status()
    assert (after.damaged, after.missing, after.window, after.last) == ((), (), before.window, before.last)
    protected.server.commit(1)
    protected.look()
    later = protected.status()
    assert (later.damaged, later.missing) == ((), ())
    assert later.window.ranges[-1].end > before.window.ranges[-1].end


def test_rebuilt_host_with_a_new_key_adopts_an_archive_that_was_not_signed(protected: ProtectedServer) -> None:
    before = protected.status()
    protected.site.begin_to_sign()
    shutil.rmtree(protected.site.host.records)
    assert protected.status().window.ranges == ()
    adopt.adopt(protected.instance(), adopt.plan(protected.instance()))
    assert protected.status().last == before.last
    assert BinlogArchive(protected.instance().open_repository(), "main").load().damaged == ()
    assert adopt.plan(protected.instance()).documents == {}


def test_runbook_has_the_public_key_and_the_setting_for_a_new_host(protected: ProtectedServer) -> None:
    def page() -> str:
        settings = parse(protected.site.text(), "test")
        return runbook.markdown(job.make(settings, protected.instance(), RestoreRequest(to="latest"), None))

    assert "Nobody signs" in page()
    public = protected.site.begin_to_sign()
    assert f'set `signers = ["{public}"]` under `[repository.here.encryption]`' in page()


def test_settings_of_a_lost_host_without_its_key_read_what_the_signers_signed(site: Site) -> None:
    public = site.begin_to_sign()
    names = site.fill([None, 0])
    shutil.rmtree(site.host.records)
    site.signing_key = site.folder.parent / "lost"
    with pytest.raises(ConfigError, match="lost does not exist") as caught:
        inventory.detail(site.instance(), "latest")
    assert "set signers under encryption" in caught.value.hint
    site.signers = (public,)
    assert inventory.detail(site.instance(), "latest").entry.manifest.backup_id == names[-1]
    state = protection_status.status(site.instance())
    assert (state.damaged, state.missing) == ((), ())
    assert verify.verify(site.instance(), Depth.READ).is_whole


def test_unsigned_history_of_another_host_is_foreign_until_somebody_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = ProtectedServer.make(tmp_path, monkeypatch)
    host.site.begin_to_sign()
    host.server.commit()
    host.back_up_from_here()
    host.server.commit()
    host.look()
    repository, latest = host.instance().open_repository(), host.plan().point
    (own,) = repository.list(layout.incarnations("main"))
    foreign = archived_by_another(tmp_path, repository, Keyring())
    assert [error.message for error in BinlogArchive(repository, "main").load().damaged] == [f"{foreign} is not signed"]
    state = host.status()
    (finding,) = state.missing
    assert (state.damaged, finding.kind, host.plan().point) == ((), StoredKind.FOREIGN, latest)
    assert foreign in finding.text
    assert "1 description of binlog histories, signed by no trusted key" in finding.text
    assert "remove the object of this name" in finding.hint
    assert verify.verify(host.instance(), Depth.LISTED).binlogs == {}
    repository.delete(foreign)
    assert (host.status().damaged, host.status().missing) == ((), ())
    unsign(repository, own.key)
    assert [error.message for error in host.status().damaged] == [f"{own.key} is not signed"], "it is of this host"


def test_history_of_another_trusted_host_that_somebody_rewrote_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = ProtectedServer.make(tmp_path, monkeypatch)
    public = host.site.begin_to_sign()
    host.server.commit()
    host.back_up_from_here()
    host.look()
    other = SigningKey.new()
    write_secret(tmp_path / "other-key", other.file())
    host.site.signers = (public, other.public)
    repository = host.instance().open_repository()
    key = archived_by_another(tmp_path, repository, Keyring(signing_key_file=tmp_path / "other-key"))
    assert host.status().damaged == ()
    unsign(repository, key)
    assert [error.message for error in host.status().damaged] == [f"{key} is not signed"]


def archived_by_another(folder: Path, repository: Repository, keyring: Keyring) -> Key:
    """Archive a binlog of another server with these keys. Return the key of the description of its history."""
    before = {listed.key for listed in repository.list(layout.incarnations("main"))}
    (folder / "other").mkdir()
    server = Server(folder / "other", "4e11fa47-71ca-11e1-9e33-c80aa9429562", is_encrypted=False)
    server.commit()
    everything = replace(repository, keyring=keyring)
    server.archiver(among=BinlogArchive(everything, "main")).look()
    (key,) = {listed.key for listed in repository.list(layout.incarnations("main"))} - before
    return key


def unsign(repository: Repository, key: Key) -> None:
    repository.overwrite(key, repository.get(key).partition(b"\n")[0] + b"\n")
