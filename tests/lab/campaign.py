"""Campaigns: long, seeded checks inside guests, in one guest per flavour at the same time.

A campaign that cuts the power of its guest runs on the host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .guest import CHECKOUT, Guest, Lab, die_with_parent
from .host import LabError

FOLDER = CHECKOUT / "tests" / "campaigns"
PYTHON = "/opt/venv/bin/python"
ON_HOST = "\nON_HOST = True\n"
"""A campaign with this line starts its own guest of the given flavour."""
_PATIENCE = 60.0
"""Time limit in seconds for the removal of an ended guest's folder."""


@dataclass
class Outcome:
    """The result of a campaign on one flavour: exit status and seconds."""

    flavour: str
    code: int = 1
    seconds: float = 0.0
    is_final: threading.Event = field(default_factory=threading.Event)


def known() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


def run(
    lab: Lab, name: str, flavours: Sequence[str], arguments: Sequence[str], *, timeout: float, keep: Path | None = None
) -> list[Outcome]:
    """Run a campaign on all flavours concurrently and return the outcomes. LabError if the name is unknown.

    The file /out/campaign.json of each guest is copied to `keep`, named by flavour. An interrupt ends the guests and is
    passed on to the caller.
    """
    if name not in known():
        raise LabError(f"no campaign {name!r}; there are: {', '.join(known())}")
    outcomes = [Outcome(flavour) for flavour in flavours]
    ends = _Ends()
    # Non-daemon threads would keep an interrupted process alive until the end of the campaign.
    started: list[Outcome] = []
    try:
        for outcome in outcomes:
            started.append(outcome)
            words = (lab, name, outcome, arguments, timeout, keep, ends)
            threading.Thread(target=_run_one, args=words, daemon=True).start()
        for outcome in outcomes:
            # Not Thread.join: before Python 3.13 an interrupted join treats the thread as ended.
            outcome.is_final.wait()
    except BaseException:
        ends.end()
        for outcome in started:
            outcome.is_final.wait(_PATIENCE)
        raise
    return outcomes


class _Ends:
    """Functions that end the processes of a campaign early, called once from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._is_over = False

    def add(self, end: Callable[[], None]) -> None:
        """Register `end` for `end()`, or call it now if `end()` was already called."""
        with self._lock:
            if not self._is_over:
                self._ends.append(end)
                return
        end()

    def end(self) -> None:
        """Call all registered functions. Functions that are added later are called immediately."""
        with self._lock:
            self._is_over = True
        for end in self._ends:
            end()


class _Lines:
    """Prints each line of a campaign immediately, after its flavour."""

    def __init__(self, flavour: str) -> None:
        self._flavour = flavour
        self._begun = b""

    def __call__(self, _descriptor: int, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            print(f"[{self._flavour}] {line.decode(errors='replace')}", flush=True)


def _run_one(
    lab: Lab, name: str, outcome: Outcome, arguments: Sequence[str], timeout: float, keep: Path | None, ends: _Ends
) -> None:
    began = time.monotonic()
    try:
        if ON_HOST in (FOLDER / f"{name}.py").read_text():
            outcome.code = _on_host(lab, name, outcome.flavour, arguments, timeout, keep, ends)
            return
        with Guest.boot(lab, outcome.flavour) as guest:
            ends.add(guest.end)
            argv = [PYTHON, f"/checkout/tests/campaigns/{name}.py", *arguments]
            env = {"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
            outcome.code = guest.run(argv, cwd="/checkout", env=env, timeout=timeout, sink=_Lines(outcome.flavour)).code
            written = guest.out / "campaign.json"
            if keep is not None and written.exists():
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}-{outcome.flavour}.json").write_bytes(written.read_bytes())
    except Exception as error:
        outcome.code = 1
        print(f"[{outcome.flavour}] {error}", flush=True)
    finally:
        outcome.seconds = time.monotonic() - began
        outcome.is_final.set()


def _on_host(
    lab: Lab, name: str, flavour: str, arguments: Sequence[str], timeout: float, keep: Path | None, ends: _Ends
) -> int:
    argv = [sys.executable, str(FOLDER / f"{name}.py"), "--flavour", flavour, *arguments]
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        argv += ["--out", str(keep / f"{name}-{flavour}.json")]
    env = {**os.environ, "ZSNAPDB_LAB_CACHE": str(lab.cache.top), "PYTHONDONTWRITEBYTECODE": "1"}
    show = _Lines(flavour)
    process = subprocess.Popen(
        argv,
        cwd=CHECKOUT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=die_with_parent,
    )
    ends.add(process.kill)
    assert process.stdout is not None
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    try:
        while data := process.stdout.read1(4096):  # type: ignore[attr-defined]
            show(1, data)
        return process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
