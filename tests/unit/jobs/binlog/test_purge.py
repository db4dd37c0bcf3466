"""A purge relies on an archived copy only if it is listed whole, not known to be damaged, and was read lately."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from tests.unit.support.binlog_archive import INCARNATION, NAME, rotated
from tests.unit.support.stored_backups import Site
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog import purge
from zsnapdb.jobs.binlog.purge import _Archived
from zsnapdb.jobs.binlog.server_binlogs import LocalFiles
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.planning.repository.host_backup_record import ArchivedPosition
from zsnapdb.repository import crypto_keys
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.repository.keyring import Keyring
from zsnapdb.store.local import LocalStore


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "store").mkdir()
    return Site(tmp_path / "store")


@pytest.fixture
def archived(site: Site) -> _Archived:
    """One rotated binlog in two encrypted chunks; this host signs, and has no identity, as a host that only writes."""
    crypto_keys.write_secret(site.folder.parent / "signing", crypto_keys.SigningKey.new().file())
    opened = site.instance().open_or_create_repository()
    created = replace(opened, keyring=Keyring(signing_key_file=site.folder.parent / "signing"))
    archive = BinlogArchive(created, "main")
    archive.begin(INCARNATION.model_copy(update={"repository_id": created.id}))
    file = rotated(archive, bytes(range(200)) * 20)
    archive.commit(file)
    return _Archived(archive, {NAME: file}, cast(LocalFiles, None))


def first_chunk(archived: _Archived) -> str:
    file = archived.files[NAME]
    return archived.archive.chunk_key(file.incarnation, file.name, file.attempt, 1)


def instance(site: Site, **settings: float) -> Instance:
    whole = site.instance()
    binlog = whole.settings.binlog.model_copy(update=settings)
    return replace(whole, settings=whole.settings.model_copy(update={"binlog": binlog}))


def test_a_copy_that_is_not_listed_whole_keeps_the_binlog_on_the_server(site: Site, archived: _Archived) -> None:
    assert purge._damaged(instance(site), archived, [NAME]) == {}
    store, key = LocalStore(site.folder), first_chunk(archived)
    good = store.get(key)
    store.put(key, good[:-1])
    assert purge._damaged(instance(site), archived, [NAME])[NAME].startswith(f"{key} has {len(good) - 1} bytes")
    store.delete(key)
    assert purge._damaged(instance(site), archived, [NAME]) == {NAME: f"{key} is missing"}


def test_a_copy_that_was_not_read_lately_is_read_before_the_binlog_goes(site: Site, archived: _Archived) -> None:
    month, quarter = (timedelta(days=days).total_seconds() for days in (30, 90))
    assert purge._unread(instance(site, read_within=month), archived, [NAME]) == (NAME,)
    purge._read(instance(site), archived, [NAME])
    assert purge._unread(instance(site, read_within=month), archived, [NAME]) == ()
    assert purge._unread(instance(site), archived, [NAME]) == (NAME,)
    site.later(days=31)
    assert purge._unread(instance(site, read_within=month), archived, [NAME]) == (NAME,)
    assert purge._unread(instance(site, read_within=quarter), archived, [NAME]) == ()
    assert purge._unread(instance(site, read_within=0), archived, [NAME]) == ()


def test_a_copy_that_reading_finds_damaged_stops_the_purge_and_stays_known(site: Site, archived: _Archived) -> None:
    store, key = LocalStore(site.folder), first_chunk(archived)
    good = store.get(key)
    store.put(key, good[:30] + bytes([good[30] ^ 1]) + good[31:])
    assert purge._damaged(instance(site), archived, [NAME]) == {}
    with pytest.raises(DamagedError, match=f"the archived copy of {NAME} is damaged"):
        purge._read(instance(site), archived, [NAME])
    assert "by binlog purge" in purge._damaged(instance(site), archived, [NAME])[NAME]


def test_without_signatures_every_copy_is_read_before_the_binlog_goes(site: Site, archived: _Archived) -> None:
    purge._read(instance(site), archived, [NAME])
    anyone = replace(archived.archive, repository=replace(archived.archive.repository, keyring=Keyring()))
    assert purge._unread(instance(site), replace(archived, archive=anyone), [NAME]) == (NAME,)


def test_unknown_copy_that_cannot_be_decrypted_keeps_the_binlog(site: Site, archived: _Archived) -> None:
    anyone = replace(archived.archive, repository=replace(archived.archive.repository, keyring=Keyring()))
    unknown = replace(archived, archive=anyone)
    assert "this host did not archive it, and cannot read it" in purge._damage(instance(site), unknown, NAME)[0]


def test_archive_that_was_rolled_back_lets_no_binlog_go(site: Site, archived: _Archived) -> None:
    here, repository = instance(site), instance(site).open_repository()
    file = archived.files[NAME]
    position = ArchivedPosition(incarnation=file.incarnation, file=NAME, end=file.end, last_commit=None)
    own_archived_binlogs.note_archived(here, repository, position)
    own_archived_binlogs.note_archived_files(here, repository, [file], [file.incarnation])
    purge._refuse_short(here, repository, archived.archive.load())
    own_archived_binlogs.note_archived(here, repository, position.model_copy(update={"end": file.end + 1}))
    with pytest.raises(DamagedError, match="nothing is purged: this host archived binlogs up to"):
        purge._refuse_short(here, repository, archived.archive.load())
