"""A lock file that no other account can open, and a wait for it that ends with the name of who holds it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from zsnapdb.base import files
from zsnapdb.base.errors import RepositoryError
from zsnapdb.store.local import LocalStore


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def _usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_a_lock_file_is_closed_to_others_also_one_that_was_open(tmp_path: Path, before: int | None) -> None:
    file = tmp_path / "lock"
    if before is not None:
        file.touch()
        file.chmod(before)
    with files.locked_file(file, 0.0):
        assert _mode(file) == 0o600


def test_a_lock_that_is_a_link_is_refused_and_its_target_keeps_its_mode(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.touch(mode=0o644)
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), files.locked_file(tmp_path / "lock", 0.0):
        pass
    assert _mode(victim) == 0o644


def test_a_wait_for_a_lock_ends_and_names_the_file_the_process_and_its_account(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(TimeoutError) as caught, files.locked_file(file, 0.02):
            pass
    assert caught.value.strerror == f"process {os.getpid()} of uid {os.geteuid()} held the lock {file} for 0.02 s"
    with files.locked_file(file, 0.0):
        pass


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    inside, most, rounds = [0], [0], [0]

    def work() -> None:
        for _ in range(50):
            with files.locked_file(tmp_path / "lock", 60.0):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                os.sched_yield()
                inside[0] -= 1
                rounds[0] += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], rounds[0]) == (1, 200)


def test_a_folder_as_store_has_no_lock_that_others_can_open_and_waits_for_none_that_they_hold(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, lock_seconds=0.02)
    store.put("main/writer.lock", b"1")
    open_to_all = tmp_path / ".replacing"
    open_to_all.touch(mode=0o644)
    with open_to_all.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.replace("main/writer.lock", b"2", tag=store.read_version("main/writer.lock").tag)
        store.delete("main/writer.lock")
    assert {path.name: _mode(path) for path in tmp_path.iterdir()} == {".replacing": 0o644, ".replacing-lock": 0o600}
    assert list(store.list("")) == []


def test_a_lock_of_a_folder_that_is_never_free_is_an_error_of_the_repository(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, lock_seconds=0.02)
    store.put("k", b"1")
    with (tmp_path / ".replacing-lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RepositoryError, match=f"process {os.getpid()} of uid .* held the lock") as caught:
            store.replace("k", b"2", tag=store.read_version("k").tag)
        assert type(caught.value) is RepositoryError, "no other attempt is made"
        assert caught.value.hint
        with pytest.raises(RepositoryError, match="held the lock"):
            store.delete("k")
    assert store.get("k") == b"1"
