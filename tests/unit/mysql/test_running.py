"""A server of ours is proved by its process, the time of its start and its data directory, never by its name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from zsnapdb.mysql.process import discovery, server

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
    (server,) = discovery.servers_below([root], ".zsnapdb")
    assert (server.pid, server.place, server.datadir) == (ours.pid, root / "one", root / "one" / "data")


def test_only_the_very_process_is_ended(tmp_path: Path, start: Start) -> None:
    root = tmp_path / "mnt"
    child = start("mnt/one/data", f"{root}/one/.zsnapdb/server.cnf")
    (server,) = discovery.servers_below([root], ".zsnapdb")
    for other in (replace(server, started=server.started - 1), replace(server, datadir=root / "one")):
        assert not discovery.end(other, ".zsnapdb")
    assert child.poll() is None
    assert discovery.end(server, ".zsnapdb")
    child.wait()
    assert not discovery.end(server, ".zsnapdb")


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[Callable[[str, str, Path], subprocess.Popen[bytes]]]:
    """Start a program of that name in a folder below `tmp_path`, with a command line that names the option file."""
    started: list[subprocess.Popen[bytes]] = []

    def process(name: str, directory: str, option_file: Path) -> subprocess.Popen[bytes]:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        program = tmp_path / name
        if not program.exists():
            shutil.copy(os.path.realpath("/bin/sh"), program)
        words = [str(program), "-c", "echo; read line", f"--defaults-file={option_file}"]
        child = subprocess.Popen(words, cwd=tmp_path / directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        started.append(child)
        return child

    yield process
    for child in started:
        child.kill()
        child.communicate()


def test_a_process_elsewhere_that_names_the_option_file_is_no_server_of_ours(
    tmp_path: Path,
    start_program: Callable[[str, str, Path], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else whoever has the account of servers has his process stopped in place of the server, which goes on."""
    ours = server.ServerProcess(tmp_path / "mnt/one/.zsnapdb")
    poser = start_program("mysqld", "mnt/two/data", ours.option_file)
    assert ours.pid() == poser.pid, "a server that was just started has not entered its data directory"
    with monkeypatch.context() as later:
        later.setattr(server, "_ENTERING_SECONDS", 0.0)
        assert ours.pid() is None
    (ours.folder).mkdir(parents=True)
    ours.pid_file.write_text(str(poser.pid))
    real = start_program("mariadbd-11.8", "mnt/one/data", ours.option_file)
    assert ours.pid() == real.pid, "the kernel says that it runs there; the other one was just started elsewhere"
    ours.stop(timeout=10)
    assert not Path(f"/proc/{real.pid}").exists()
    assert poser.poll() is None


_OTHER_SANDBOX = """
import ctypes, os, sys
libc, stage = ctypes.CDLL(None), sys.argv[1]
libc.mount(b"none", stage.encode(), b"tmpfs", 0, None)
for path in ("/bin", "/lib", "/lib64", "/usr", os.path.dirname(sys.argv[2])):
    if os.path.isdir(path):
        os.makedirs(stage + path)
        assert libc.mount(path.encode(), (stage + path).encode(), None, 4096 | 16384, None) == 0
os.chdir(stage)
assert libc.pivot_root(b".", b".") == 0
assert libc.umount2(b".", 2) == 0
os.chdir("/")
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_the_server_of_another_clone_is_no_server_of_ours(tmp_path: Path) -> None:
    """It has the account of all clones, can write its command line, and sees only its own datasets."""
    if os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev or subprocess.call(["unshare", "-Urm", "true"]):
        pytest.skip("needs another file system, and user namespaces")
    (tmp_path / "program").mkdir()
    (tmp_path / "stage").mkdir()
    program = shutil.copy(os.path.realpath("/bin/sh"), tmp_path / "program/mysqld")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as stopped:
        ours = server.ServerProcess(Path(stopped, ".zsnapdb"))
        ours.folder.mkdir()
        words = [sys.executable, "-c", _OTHER_SANDBOX, str(tmp_path / "stage"), str(program), "-c", "echo; read line"]
        words = ["unshare", "-Urm", *words, f"--defaults-file={ours.option_file}"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as poser:
            assert poser.stdout is not None
            assert poser.stdout.readline() == b"\n"
            ours.pid_file.write_text(str(poser.pid))
            assert poser.pid in server.OptionFileUsers().of(ours.option_file)
            assert ours.pid() is None
            ours.stop(timeout=10)
            ours.kill()
            assert poser.poll() is None
            poser.kill()


@pytest.mark.parametrize("name", ["sleep", "mysqld_exporter", "sh"])
def test_another_program_is_no_server_wherever_it_runs(
    tmp_path: Path, start_program: Callable[[str, str, Path], subprocess.Popen[bytes]], name: str
) -> None:
    """The account of servers may enter the data directory, and name the option file."""
    ours = server.ServerProcess(tmp_path / "mnt/one/.zsnapdb")
    poser = start_program(name, "mnt/one/data", ours.option_file)
    ours.folder.mkdir(parents=True)
    ours.pid_file.write_text(str(poser.pid))
    assert ours.pid() is None
    ours.stop(timeout=10)
    ours.kill()
    assert poser.poll() is None
