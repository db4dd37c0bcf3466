"""A real engine (Temporal's development server) on this machine, with control, for tests and measurements."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zsnapdb.base.errors import UnreachableError
from zsnapdb.config.services import EngineSettings

if TYPE_CHECKING:
    from temporalio.client import Client

CHECKOUT = Path(__file__).parents[3]
PATIENCE = 240.0
LONG = 60
CONTINUES_EARLY = f"limit.historyCount.suggestContinueAsNew={LONG}"
"""An engine setting: after this many events it suggests to continue a workflow as a new one."""

ELSEWHERE = """
import sys
from dataclasses import replace
from pathlib import Path
from zsnapdb.jobs.base import host
host.THIS_HOST = replace(host.THIS_HOST, run=Path(sys.argv.pop(1)))
from zsnapdb.cli.app import main
main()
"""
"""The command line of a host with its locks in the folder of the first argument."""


def temporal() -> str | None:
    """Return the program `temporal`; None if it is not installed."""
    beside = Path(sys.executable).with_name("temporal")
    return shutil.which("temporal") or (str(beside) if beside.exists() else None)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def environment() -> dict[str, str]:
    """Return the environment of programs of the checkout."""
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}


def python(*words: str, log: Path) -> subprocess.Popen[bytes]:
    """Start a program of the checkout, with its output in the file."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, *words], stdout=out, stderr=subprocess.STDOUT, cwd=CHECKOUT, env=environment()
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program, at last by force."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def engine(folder: Path, port: int, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server during the block; it answers when the block starts. Its files are in the folder."""
    program = temporal()
    assert program is not None
    from zsnapdb.fleet.trial_fleet import LESS_MEMORY, engine_description

    words = engine_description(port, "fleet", folder / "engine.db")
    words += [word for setting in settings for word in ("--dynamic-config-value", setting)]
    with (folder / "engine.log").open("ab") as out:
        process = subprocess.Popen(
            [program, *words], stdout=out, stderr=subprocess.STDOUT, env={**LESS_MEMORY, **os.environ}
        )
    try:
        wait_for_port(port, process)
        asyncio.run(answering(EngineSettings(server=f"127.0.0.1:{port}")))
        yield process
    finally:
        end(process)


async def answering(settings: EngineSettings) -> Client:
    """Return a connection once the engine answers: it listens some time before it reports itself healthy."""
    from zsnapdb.fleet.connection import connect

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await connect(settings, "a test")
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.2)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on the port."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, "the engine ended"
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens on port {port}")


def jobs_file(folder: Path, port: int, text: str = '[instance.quick]\nhost = "db1"\n') -> Path:
    """Write the jobs file of a fleet with this engine."""
    file = folder / "fleet-jobs.toml"
    file.write_text(f'[engine]\nserver = "127.0.0.1:{port}"\n{text}')
    return file
