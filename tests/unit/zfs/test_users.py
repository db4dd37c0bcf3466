"""Whoever keeps a filesystem mounted is found by the kernel's numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from zsnapdb.zfs.mounts import family_of, users_of

CHILD = "import subprocess, sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"


def test_a_shell_whose_working_directory_lies_there_is_found(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        users = {user.pid: user.what for user in users_of({tmp_path.stat().st_dev})}
        assert users[child.pid] == "its working directory"
        assert os.getpid() not in users
    finally:
        child.communicate()


def test_processes_that_use_other_filesystems_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "12" / "fd").mkdir(parents=True)
    for name in ("cwd", "root", "fd/3"):
        (tmp_path / "12" / name).symlink_to("/proc")
    assert users_of({tmp_path.stat().st_dev}, tmp_path) == []


def test_the_family_of_a_process_is_what_it_descends_from_and_what_descends_from_it(tmp_path: Path) -> None:
    """Process 1 is no part of a family: everything descends from it. A name may have brackets and spaces."""
    parents = {1: 0, 20: 1, 21: 20, 22: 21, 23: 22, 30: 20, 40: 1}
    for pid, parent in parents.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) S 9 (b) S {parent} 1 1 0")
    (tmp_path / "99").mkdir()
    assert family_of(22, tmp_path) == {20, 21, 22, 23}
    assert family_of(40, tmp_path) == {40}
