"""A trial asks its own engine alone."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.support import fleet_host
from zsnapdb.base.errors import CommandError
from zsnapdb.fleet import dev
from zsnapdb.fleet.dev import TrialFleet


def test_an_engine_of_somebody_else_on_the_port_is_not_asked(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        trial = TrialFleet(tmp_path / "trial", port, "db1")
        settings, runner = fleet_host.settings(tmp_path, port, "db1"), fleet_host.runner(tmp_path, port, "db1")
        with pytest.raises(CommandError, match=f"port {port} .*in use"):
            dev.serve(trial, Path("/bin/true"), settings, runner, print)
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert not trial.folder.exists()


def test_a_trial_whose_engine_ends_ends_too() -> None:
    async def ended() -> None:
        stop = asyncio.Event()
        with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as engine:
            watching = asyncio.create_task(dev._stop_after(engine, stop))
            await asyncio.sleep(0)
            assert not stop.is_set()
            engine.kill()
            await asyncio.wait_for(stop.wait(), 20)
            await watching

    at = time.monotonic()
    asyncio.run(ended())
    assert time.monotonic() - at < 20
