"""What may make commits wait, each as an action that is measured from its start to its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
PYTHON = "/opt/venv/bin/python"
SNAPSHOTS = ("tank/mysql@stall", "tank/mysql/data@stall")
PARTS = Path("/tmp/parts.json")
"""Where timed.py notes the parts of a lock."""
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
LOCKS = {
    "none": '{ strategy = "none" }',
    "auto": '{ strategy = "auto" }',
    "ftwrl": '{ strategy = "ftwrl", deadline = "2s", budget = "0s" }',
    # Waits behind any statement, which the one above does not.
    "tried": '{ strategy = "ftwrl", deadline = "2s", budget = "0s", longest_statement = "1h" }',
}


@dataclass(frozen=True)
class Outcome:
    """The end of an action: exit status, milliseconds from its lock to its release (None: unknown), and a note.

    `statements_ms` and `request_ms`: of them those in which the server ran the statements of the lock, and those of the
    request for snapshots (None: unknown).
    """

    code: int
    held_ms: float | None = None
    note: str = ""
    statements_ms: float | None = None
    request_ms: float | None = None


class Action(Protocol):
    """Something that may make commits wait. Only `run` is measured."""

    def prepare(self) -> None: ...

    def run(self) -> Outcome: ...

    def clean(self) -> None: ...


def _nothing() -> None:
    pass


def _destroy() -> None:
    for name in SNAPSHOTS:
        subprocess.run(["zfs", "destroy", name], check=True)


class Nothing:
    """The untouched server."""

    def prepare(self) -> None:
        pass

    def run(self) -> Outcome:
        return Outcome(0)

    def clean(self) -> None:
        pass


@dataclass(frozen=True)
class Command:
    """A command from its start to its end; `undo` removes what it made. Its exit status must be one of `codes`."""

    argv: tuple[str, ...]
    undo: Callable[[], None] = _nothing
    codes: tuple[int, ...] = (0,)

    def prepare(self) -> None:
        PARTS.unlink(missing_ok=True)

    def run(self) -> Outcome:
        done = subprocess.run(self.argv, capture_output=True, text=True)
        if done.returncode not in self.codes:
            raise RuntimeError(f"{' '.join(self.argv)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        if done.returncode != 0:
            return Outcome(done.returncode, note=done.stderr.strip().splitlines()[0])
        document = json.loads(done.stdout)
        lock = document["backup"]["lock"] if "backup" in document else document
        parts = json.loads(PARTS.read_text()) if PARTS.exists() else {}
        return Outcome(0, float(lock["held_ms"]), "", parts.get("statements_ms"), parts.get("request_ms"))

    def clean(self) -> None:
        self.undo()


class Busy:
    """A process at the lowest priority that computes for as long as a backup takes, and asks nothing of anybody."""

    _CODE = (
        "import hashlib, time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: hashlib.sha256(bytes(4096))"
    )

    def prepare(self) -> None:
        pass

    def run(self) -> Outcome:
        subprocess.run(("nice", "-n", "19", PYTHON, "-c", self._CODE), check=True)
        return Outcome(0)

    def clean(self) -> None:
        pass


class Bare:
    """The bare snapshot, in a process that is ready for it: see bare.py."""

    def prepare(self) -> None:
        self._process = subprocess.Popen(
            [PYTHON, str(HERE / "bare.py"), *SNAPSHOTS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._read()

    def run(self) -> Outcome:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        return Outcome(0, float(self._read()["held_ms"]))

    def clean(self) -> None:
        if self._process.wait(60) != 0:
            raise RuntimeError(f"bare.py ended with {self._process.returncode}")
        _destroy()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"bare.py ended with {self._process.wait()}")
        document: dict[str, Any] = json.loads(line)
        return document


def _config(lock: str) -> Path:
    return CONFIG.with_name(f"stall-{lock}.toml")


def write_configs() -> None:
    """Write a copy of the lab's configuration for each lock."""
    table = "[instance.main]\n"
    text = CONFIG.read_text()
    for name, value in LOCKS.items():
        _config(name).write_text(text.replace(table, f"{table}lock = {value}\n"))


def backup(lock: str, codes: tuple[int, ...] = (0,)) -> Command:
    """Return the whole command, with its send."""
    timed = (PYTHON, str(HERE / "timed.py"), str(PARTS))
    return Command((*timed, "backup", "--json", "--config", str(_config(lock))), codes=codes)


def script() -> Command:
    """Return the usual script with the global read lock."""
    return Command((PYTHON, str(HERE / "script.py"), *SNAPSHOTS), _destroy)
