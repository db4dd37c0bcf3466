"""A unit test that would change something outside its own folder fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.support.only_own_folder import OutsideError


@pytest.mark.parametrize("path", ["/etc/zsnapdb-test", "/var/lib/zsnapdb-test", "/run/zsnapdb-test"])
def test_nothing_is_written_removed_or_renamed_outside(path: str, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("x")
    for act in (
        lambda: Path(path).write_text("x"),
        lambda: Path(path).mkdir(),
        lambda: (tmp_path / "own").rename(path),
        lambda: os.symlink(tmp_path, path),
        lambda: Path(path).touch(),
    ):
        with pytest.raises(OutsideError):
            act()
    assert not Path(path).exists()
    with pytest.raises(OutsideError):
        Path("/etc/passwd").unlink()
