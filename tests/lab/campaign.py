"""Campaigns: long, seeded proofs that run inside guests, one guest per flavour side by side.

A campaign that cuts the power of its guest runs on the host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .guest import CHECKOUT, Guest, Lab
from .host import LabError

FOLDER = CHECKOUT / "tests" / "campaigns"
PYTHON = "/opt/venv/bin/python"
ON_HOST = "\nON_HOST = True\n"
"""A campaign with this line starts its own guest, of the given flavour."""


@dataclass
class Outcome:
    """The result of a campaign on one flavour: exit status and seconds."""

    flavour: str
    code: int = 1
    seconds: float = 0.0


def known() -> list[str]:
    """Return the names of the campaigns."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


def run(
    lab: Lab, name: str, flavours: Sequence[str], arguments: Sequence[str], *, timeout: float, keep: Path | None = None
) -> list[Outcome]:
    """Run a campaign on all flavours at once and return the outcomes. LabError if the name is unknown.

    The file /out/campaign.json of each guest is copied to `keep`, named by flavour.
    """
    if name not in known():
        raise LabError(f"no campaign {name!r}; there are: {', '.join(known())}")
    outcomes = [Outcome(flavour) for flavour in flavours]
    threads = [
        threading.Thread(target=_run_one, args=(lab, name, outcome, arguments, timeout, keep)) for outcome in outcomes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class _Lines:
    """Prints each line of a campaign at once, with the flavour before it."""

    def __init__(self, flavour: str) -> None:
        self._flavour = flavour
        self._begun = b""

    def __call__(self, _descriptor: int, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            print(f"[{self._flavour}] {line.decode(errors='replace')}", flush=True)


def _run_one(
    lab: Lab, name: str, outcome: Outcome, arguments: Sequence[str], timeout: float, keep: Path | None
) -> None:
    began = time.monotonic()
    if ON_HOST in (FOLDER / f"{name}.py").read_text():
        outcome.code = _on_host(lab, name, outcome.flavour, arguments, timeout, keep)
        outcome.seconds = time.monotonic() - began
        return
    try:
        with Guest.boot(lab, outcome.flavour) as guest:
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
    outcome.seconds = time.monotonic() - began


def _on_host(lab: Lab, name: str, flavour: str, arguments: Sequence[str], timeout: float, keep: Path | None) -> int:
    """Run a campaign on the host and return its exit status."""
    argv = [sys.executable, str(FOLDER / f"{name}.py"), "--flavour", flavour, *arguments]
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        argv += ["--out", str(keep / f"{name}-{flavour}.json")]
    env = {**os.environ, "ZSNAPDB_LAB_CACHE": str(lab.cache.top), "PYTHONDONTWRITEBYTECODE": "1"}
    show = _Lines(flavour)
    process = subprocess.Popen(
        argv, cwd=CHECKOUT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
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
