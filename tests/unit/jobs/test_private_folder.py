"""What this host keeps for itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.files import make_private, open_lock
from zsnapdb.jobs.base.run_locks import exclusive


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_no_other_account_can_open_a_lock_and_so_hold_it(tmp_path: Path) -> None:
    with exclusive("clone-x", doing="testing", folder=tmp_path / "run"):
        assert _mode(tmp_path / "run") == 0o700
        assert _mode(tmp_path / "run" / "clone-x.lock") == 0o600


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)
    make_private(folder)
    assert _mode(folder) == 0o700


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir(mode=0o755)
    (tmp_path / "run").symlink_to(tmp_path / "victim")
    with pytest.raises(PreflightError, match="making the folder"):
        make_private(tmp_path / "run")
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_lock_that_is_a_link_is_refused_and_its_target_stays(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.lock").symlink_to(victim)
    with pytest.raises(PreflightError, match="making the lock file"):
        open_lock(tmp_path / "run", "a")
    assert victim.read_text() == "precious"


def test_a_folder_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PreflightError, match=f"belongs to uid {owner}"):
        make_private(folder)
