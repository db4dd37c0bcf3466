"""What one reading of the repository says of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.archived_backups import ProtectedServer
from zsnapdb.jobs.health.recovery_coverage import read


def test_the_archive_of_a_new_server_that_committed_nothing_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its lag would be broken from the first hour on, though all is archived."""
    protected = ProtectedServer.make(tmp_path, monkeypatch)
    protected.back_up()
    protected.server.look()
    instance = protected.instance()
    stored = read(instance, instance.open_repository())
    assert stored.archive.files
    assert [file.last_commit for file in stored.archive.files] == [None]
    assert stored.last == stored.archive.files[0]
