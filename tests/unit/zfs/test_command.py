"""What a zfs command says when it fails becomes an error of the right kind, with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.base import program_start
from zsnapdb.base.errors import CommandError, ExistsError, NotFound, PreflightError
from zsnapdb.zfs import command, mounts
from zsnapdb.zfs.command import NotMountedByZfsError, PoolFullError, StreamRefusedError, failure, run, run_when_free
from zsnapdb.zfs.mounts import FilesystemUser, ForeignMount
from zsnapdb.zfs.streams import SendStream


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cannot open 'tank/x': dataset does not exist", NotFound),
        ("cannot receive new filesystem stream: destination 'tank/x' exists", ExistsError),
        ("cannot create snapshot 'tank/x@y': permission denied", PreflightError),
        ("cannot destroy 'tank/x': dataset is busy", CommandError),
        ("cannot receive: out of space", PoolFullError),
        ("cannot unmount 'tank/x': legacy mountpoint\nuse umount(8) to unmount this filesystem", NotMountedByZfsError),
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
    monkeypatch.setattr(program_start, "_FOLDERS", ())
    with pytest.raises(PreflightError, match="zfs cannot be started: Permission denied"):
        run(["zfs", "list"])
    with pytest.raises(PreflightError, match="zfs cannot be started: Permission denied"), SendStream("t@a", None, ()):
        pass


def test_busy_dataset_is_named_with_who_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []

    def busy(argv: list[str]) -> str:
        raise failure(argv, 1, "cannot destroy 'tank/x': dataset is busy")

    def elsewhere(names: frozenset[str]) -> list[ForeignMount]:
        asked.append(names)
        return [ForeignMount("tank/x", "/in", 77, follows=False)] if len(asked) == 1 else []

    monkeypatch.setattr(command, "run", busy)
    monkeypatch.setattr(command, "_NAMESPACE_PATIENCE", -1.0)
    monkeypatch.setattr(mounts, "mounted_elsewhere", elsewhere)
    with pytest.raises(CommandError, match="also mounted at /in in the mount namespace of process 77") as told:
        run_when_free(["zfs", "destroy", "tank/x@a"], patience=60.0)
    assert "nsenter -t 77 -m" in told.value.hint
    assert asked == [{"tank/x"}]
    monkeypatch.setattr(command, "users_of", lambda devices: [FilesystemUser(78, "mysqld", "an open file")])
    monkeypatch.setattr(mounts, "devices_of", lambda names: {1})
    with pytest.raises(CommandError, match=r"process 78 \(mysqld\) has an open file there"):
        run_when_free(["umount", "--", "/m"], patience=-1.0, dataset="tank/y")
    assert asked[-1] == {"tank/y"}
