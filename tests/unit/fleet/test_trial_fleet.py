"""A trial asks its own engine alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.support import fleet_host, trial_engine
from zsnapdb.base.errors import CommandError
from zsnapdb.fleet import trial_fleet
from zsnapdb.fleet.trial_fleet import TrialFleet


def test_an_engine_of_somebody_else_on_the_port_is_not_asked(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        trial = TrialFleet(tmp_path / "trial", port, "db1")
        settings, runner = fleet_host.settings(tmp_path, port, "db1"), fleet_host.runner(tmp_path, port, "db1")
        with pytest.raises(CommandError, match=f"port {port} .*in use"):
            trial_fleet.serve(trial, Path("/bin/true"), settings, runner, print)
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert not trial.folder.exists()


CONFIG = '[instance.main]\nrepository = "here"\n[repository.here]\nurl = "file:///nonexistent"\n'
ENGINE = """#!{python} -S
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))
open({file!r}, "w").close()
time.sleep(600)
"""


def children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the pids of the programs that a process has started and that run."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


@pytest.mark.parametrize("begins", ["at once", "when it works"])
def test_ctrl_c_twice_ends_all_that_a_trial_started_and_shows_no_traceback(tmp_path: Path, begins: str) -> None:
    """The first engine is one that nobody can reach, and that takes its time to end."""
    real, started, slow = trial_engine.temporal(), tmp_path / "started", tmp_path / "slow"
    if begins != "at once" and real is None:
        pytest.skip("the program temporal is not here")
    slow.write_text(ENGINE.format(python=sys.executable, file=str(started)))
    slow.chmod(0o755)
    log, port = tmp_path / "log", trial_engine.free_port()
    (tmp_path / "zsnapdb.toml").write_text(CONFIG)
    words = ("--folder", str(tmp_path / "trial"), "--port", str(port), "--config", str(tmp_path / "zsnapdb.toml"))
    chosen = str(slow if begins == "at once" else real)
    process = trial_engine.python(
        "-c", trial_engine.ELSEWHERE, str(tmp_path), "fleet", "dev", *words, "--temporal", chosen, log=log
    )
    try:
        deadline = time.monotonic() + 120
        while not (started.exists() or "works" in log.read_text()):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (engine,) = children(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.wait(120)
        left = Path(f"/proc/{engine}").exists()
    finally:
        if process.poll() is None:
            for pid in children(process):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
    assert not left
    assert "Traceback" not in log.read_text()
    assert process.returncode in (0, 130), log.read_text()


def test_a_trial_whose_engine_ends_ends_too() -> None:
    async def ended() -> None:
        stop = asyncio.Event()
        with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as engine:
            watching = asyncio.create_task(trial_fleet._stop_after(engine, stop))
            await asyncio.sleep(0)
            assert not stop.is_set()
            engine.kill()
            await asyncio.wait_for(stop.wait(), 20)
            await watching

    at = time.monotonic()
    asyncio.run(ended())
    assert time.monotonic() - at < 20
