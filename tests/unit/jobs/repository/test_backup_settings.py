"""The recorded settings of a backup's server are shown from its manifest alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_backups import VARIABLES, ProtectedServer
from zsnapdb.jobs.repository import inventory
from zsnapdb.report.repository.list import BackupSettingsView


def test_the_settings_are_those_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    protected.server.commit(2)
    name = protected.back_up()
    view = BackupSettingsView(inventory.backup_settings(protected.instance(), "latest"))
    about, warning, *lines = view.text().splitlines()
    assert about.startswith(f"# MySQL 9.7.4 of instance main, from backup {name} of 20")
    assert "read them first" in warning
    assert lines[:3] == ["[mysqld]", 'datadir="/var/lib/mysql/data/"', ""]
    assert lines[-1] == "# server_id=1"
    fields = view.fields()
    assert (fields["backup_id"], fields["variables"], fields["lines"]) == (
        name,
        VARIABLES,
        ['datadir="/var/lib/mysql/data/"'],
    )
