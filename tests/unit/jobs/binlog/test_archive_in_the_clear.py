"""Binlogs of a server on a dataset that ZFS encrypts are archived only where the repository encrypts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.jobs.binlog import archive_run
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource
from zsnapdb.planning.backup.dataset_encryption import CLEAR, DatasetEncryption
from zsnapdb.zfs import encryption
from zsnapdb.zfs.mounts import MountEntry


@pytest.mark.parametrize(
    ("fstype", "at_rest", "is_refused"),
    [
        ("zfs", DatasetEncryption("aes-256-gcm", "tank/mysql"), True),
        ("zfs", CLEAR, False),
        ("ext4", CLEAR, False),
    ],
)
def test_binlogs_that_zfs_encrypts_are_stored_nowhere_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, at_rest: DatasetEncryption, is_refused: bool
) -> None:
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    server, instance = protected.server, protected.instance()
    server.commit()
    source = BinlogSource(Flavour.MYSQL, server.uuid, 1, server.folder / "binlog.index", server.folder, server.folder)
    monkeypatch.setattr(archive_run, "mounted", lambda: [MountEntry(str(server.folder), fstype, "tank/mysql")])
    monkeypatch.setattr(encryption, "at_rest", lambda names: dict.fromkeys(names, at_rest))
    if is_refused:
        with pytest.raises(PreflightError, match="would be stored unencrypted"):
            archive_run.archiver_of(instance, source)
    else:
        assert archive_run.archiver_of(instance, source).look().transactions == 1
