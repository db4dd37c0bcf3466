"""A server in another namespace is known by the kernel: by its mounts, or by the lock on its system tablespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.support.clone_pool import HOME, SOURCE, ClonePool
from zsnapdb.base.errors import ServerError
from zsnapdb.config.settings import CloneSettings, Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone import catalogue, isolated_start
from zsnapdb.zfs import mounts

LOCKS = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_lock_of_another_process_is_seen_and_none_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "ibdata1"
    assert not isolated_start._is_locked(file)
    file.write_bytes(b"pages")
    assert not isolated_start._is_locked(file)
    command = [sys.executable, "-c", LOCKS, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert isolated_start._is_locked(file)
        holder.communicate("")
    assert not isolated_start._is_locked(file)
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert not isolated_start._is_locked(file)


def test_only_a_clone_whose_files_a_server_uses_there_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pool = ClonePool()
    pool.install(monkeypatch)
    base = pool.snapshot(f"{SOURCE}@zsnapdb-20261122T000000Z-0001", backup="20261122T000000Z-0001")
    there = {name: pool.clone(name, base) for name in ("box", "idle", "other")}
    clones = catalogue.listing(
        Settings.model_construct(instance={}, repository={}, clones=CloneSettings(dataset=HOME)), THIS_HOST
    )
    number = tmp_path.stat().st_dev
    found = [
        mounts.ForeignMount(there["box"], "/box", 77, False, f"{os.major(number)}:{os.minor(number)}"),
        mounts.ForeignMount(there["idle"], "/idle", 77, False, "0:65535"),
    ]
    monkeypatch.setattr(mounts, "mounted_elsewhere", lambda names: [one for one in found if one.source in names])
    with subprocess.Popen(["sleep", "100"], cwd=tmp_path) as server:
        monkeypatch.setattr(isolated_start, "is_server_program", lambda process: process.name == str(server.pid))
        seen = {one.name: one.elsewhere for one in isolated_start.with_servers_elsewhere(clones)}
        box = next(one for one in clones if one.name == "box")
        with pytest.raises(ServerError, match=f"box runs as process {server.pid} in another mount namespace"):
            isolated_start.refuse_running_elsewhere(box)
        server.kill()
    assert seen == {"box": f"as process {server.pid} in another mount namespace", "idle": "", "other": ""}
    isolated_start.refuse_running_elsewhere(box)
