"""What a zfs command says when it fails becomes an error of the right kind, with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.base.errors import CommandError, ExistsError, NotThere, PreflightError
from zsnapdb.zfs.command import PoolFullError, StreamRefusedError, failure, run
from zsnapdb.zfs.streams import SendStream


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cannot open 'tank/x': dataset does not exist", NotThere),
        ("cannot receive new filesystem stream: destination 'tank/x' exists", ExistsError),
        ("cannot create snapshot 'tank/x@y': permission denied", PreflightError),
        ("cannot destroy 'tank/x': dataset is busy", CommandError),
        ("cannot receive: out of space", PoolFullError),
        ("cannot receive resume stream: checksum mismatch", StreamRefusedError),
        ("cannot receive resume stream: kernel modules must be upgraded to receive this stream.", StreamRefusedError),
        ("The ZFS modules cannot be auto-loaded.\nTry running 'modprobe zfs' as root to manually", PreflightError),
        ("something nobody has seen", CommandError),
    ],
)
def test_what_zfs_says_is_classified_and_kept(text: str, error: type) -> None:
    classified = failure(["zfs", "x"], 1, text)
    assert type(classified) is error
    assert " ".join(text.split()) in classified.message
    assert classified.hint


def test_a_command_that_the_system_may_not_start_is_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder of PATH that the account may not read (execve(2), EACCES)."""
    (tmp_path / "zfs").write_text("not executable")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match="zfs cannot be started: Permission denied"):
        run(["zfs", "list"])
    with pytest.raises(PreflightError, match="zfs cannot be started: Permission denied"), SendStream("t@a", None, ()):
        pass
