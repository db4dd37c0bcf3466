"""Whoever keeps a filesystem mounted is found by the kernel's numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from zsnapdb.zfs.users import family_of, users_of

CHILD = "import subprocess, sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"


def test_a_shell_whose_working_directory_lies_there_is_found(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"up"
        users = {user.pid: user.what for user in users_of({tmp_path.stat().st_dev})}
        assert users[child.pid] == "its working directory"
        assert os.getpid() not in users
        assert {os.getpid(), child.pid} <= family_of(child.pid)
        assert child.pid in family_of(os.getpid())
    finally:
        child.communicate()


def test_processes_that_use_other_filesystems_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "12" / "fd").mkdir(parents=True)
    for name in ("cwd", "root", "fd/3"):
        (tmp_path / "12" / name).symlink_to("/proc")
    assert users_of({tmp_path.stat().st_dev}, tmp_path) == []
