"""One run at a time on a host: a second run ends with its own exit code, or waits for the end of the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT
from tests.unit.support.events import Recorder
from tests.unit.support.world import World, made
from zsnapdb.base.errors import BusyError, PreflightError
from zsnapdb.jobs.base.run_locks import exclusive, if_free, is_held, lock_instance


def test_a_second_run_ends_at_once_with_75_and_names_the_first_and_its_work(tmp_path: Path) -> None:
    with (
        exclusive("x", doing="pruning instance main", folder=tmp_path),
        pytest.raises(BusyError, match=r"process \d+ is pruning instance main") as caught,
        exclusive("x", doing="backing up instance main", folder=tmp_path),
    ):
        pass
    assert caught.value.exit_code == 75


def test_a_run_that_waits_says_for_whom_and_goes_on_at_the_end_of_the_other(tmp_path: Path) -> None:
    began, ended, lines = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        with exclusive("x", doing="pruning", folder=tmp_path):
            began.set()
            ended.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    began.wait(60)

    def tell(line: str) -> None:
        lines.append(line)
        ended.set()

    with exclusive("x", doing="backing up", folder=tmp_path, patience=600, tell=tell):
        pass
    thread.join()
    assert len(lines) == 1
    assert lines[0].startswith("waiting up to 600 s for another zsnapdb: process")


def test_a_lock_file_that_others_wrote_is_not_repeated(tmp_path: Path) -> None:
    with exclusive("x", doing="pruning", folder=tmp_path):
        (tmp_path / "x.lock").write_text("12 \x1b[2Jgone\n" * 100)
        with pytest.raises(BusyError, match="an unknown process"), exclusive("x", doing="y", folder=tmp_path):
            pass


def test_a_folder_that_cannot_hold_locks_is_not_another_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match="Not a directory"), if_free("x", tmp_path / "file" / "run"):
        pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    with made(tmp_path) as world:
        return world


def test_an_instance_waits_as_long_as_it_was_told_and_reports_it(world: World) -> None:
    instance = world.instance.with_events(Recorder(world.reported))
    with lock_instance(instance, "backup", "pruning"):
        for waiting, lines in ((instance, 0), (replace(instance, wait=0.2), 1), (instance.waiting(0.2), 2)):
            with pytest.raises(BusyError), lock_instance(waiting, "backup", "backing up"):
                pass
            assert len(world.reported) == lines


def test_the_file_of_a_lock_goes_with_its_holder_and_never_lets_two_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsnapdb.jobs.base.run_locks._POLL_SECONDS", 0.0005)
    inside, most, rounds = [0], [0], [0]

    def work() -> None:
        for _ in range(100):
            with exclusive("clone-a", doing="working", patience=60, folder=tmp_path):
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
    assert (most[0], rounds[0], list(tmp_path.iterdir())) == (1, 400, [])


def test_the_end_of_a_lock_whose_file_was_removed_leaves_that_of_the_next_holder(tmp_path: Path) -> None:
    with exclusive("x", doing="first", folder=tmp_path):
        (tmp_path / "x.lock").unlink()
        second = exclusive("x", doing="second", folder=tmp_path)
        second.__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]
    second.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


HOLDER = """
import sys, time
from pathlib import Path
from zsnapdb.jobs.base.run_locks import exclusive
with exclusive("rewind-main", doing="working", folder=Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_kernel_says_whether_another_run_has_a_lock_and_nobody_is_kept_from_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert not is_held("rewind-main", tmp_path)
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        seen = is_held("rewind-main", tmp_path), is_held("rewind-other", tmp_path)
        holder.send_signal(signal.SIGKILL)
    assert seen == (True, False)
    # The file of a killed run stays; its lock is gone.
    assert (tmp_path / "rewind-main.lock").exists()
    assert not is_held("rewind-main", tmp_path)
