"""A server of ours is proved by its process, the time of its start and its data directory, never by its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.mysql.process import running, server

Start = Callable[[str, str], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process in a working directory, with a command line that names an option file, both below the folder."""
    started: list[subprocess.Popen[bytes]] = []

    def process(directory: str, option_file: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / directory
        folder.mkdir(parents=True, exist_ok=True)
        words = [
            sys.executable,
            "-c",
            "import signal; print(flush=True); signal.pause()",
            f"--defaults-file={option_file}",
        ]
        child = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child.stdout:
            child.stdout.readline()
        started.append(child)
        return child

    yield process
    for child in started:
        child.kill()
        child.wait()


def test_a_server_is_one_whose_option_file_and_data_directory_lie_below_one_place(tmp_path: Path, start: Start) -> None:
    root = tmp_path / "mnt"
    option = f"{root}/one/.zsnapdb/server.cnf"
    ours = start("mnt/one/data", option)
    start("elsewhere", option)
    start("mnt/two/data", option)
    start("mnt/one/data", f"{tmp_path}/elsewhere/.zsnapdb/server.cnf")
    start("mnt/one/data", f"{root}/one/other/server.cnf")
    start("mnt/one/data", f"{root}/../mnt/one/.zsnapdb/server.cnf")
    (server,) = running.servers_below([root], ".zsnapdb")
    assert (server.pid, server.place, server.datadir) == (ours.pid, root / "one", root / "one" / "data")


def test_only_the_very_process_is_ended(tmp_path: Path, start: Start) -> None:
    root = tmp_path / "mnt"
    child = start("mnt/one/data", f"{root}/one/.zsnapdb/server.cnf")
    (server,) = running.servers_below([root], ".zsnapdb")
    for other in (replace(server, started=server.started - 1), replace(server, datadir=root / "one")):
        assert not running.end(other, ".zsnapdb")
    assert child.poll() is None
    assert running.end(server, ".zsnapdb")
    child.wait()
    assert not running.end(server, ".zsnapdb")


def test_a_process_elsewhere_that_names_the_option_file_is_no_server_of_ours(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever has the account of servers has his process stopped in place of the server, which goes on."""
    ours = server.ServerProcess(tmp_path / "mnt/one/.zsnapdb")
    poser = start("mnt/two/data", str(ours.option_file))
    assert ours.pid() == poser.pid, "a server that was just started has not entered its data directory"
    monkeypatch.setattr(server, "_ENTERING_SECONDS", 0.0)
    assert ours.pid() is None
    (ours.folder).mkdir(parents=True)
    ours.pid_file.write_text(str(poser.pid))
    assert ours.pid() is None
    real = start("mnt/one/data", str(ours.option_file))
    assert ours.pid() == real.pid
