"""Campaigns: long, seeded proofs that run inside guests, one of each flavour side by side."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .guest import CHECKOUT, Guest, Lab
from .host import LabError

FOLDER = CHECKOUT / "tests" / "campaigns"
PYTHON = "/opt/venv/bin/python"


@dataclass
class Outcome:
    """What came of a campaign on one flavour: its exit status, how long it took in seconds."""

    flavour: str
    code: int = 1
    seconds: float = 0.0


def known() -> list[str]:
    """Return the names of the campaigns."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


def run(lab: Lab, name: str, flavours: Sequence[str], arguments: Sequence[str], *, timeout: float, keep: Path | None = None) -> list[Outcome]:
    """Run a campaign on each flavour at once and return what came of it; LabError if there is none of that name.

    What it leaves in its guest's /out/campaign.json goes to `keep`, named by flavour.
    """
    if name not in known():
        raise LabError(f"no campaign {name!r}; there are: {', '.join(known())}")
    outcomes = [Outcome(flavour) for flavour in flavours]
    threads = [threading.Thread(target=_run_one, args=(lab, name, found, arguments, timeout, keep)) for found in outcomes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


class _Lines:
    """Shows each line a campaign prints as it comes, with its flavour before it."""

    def __init__(self, flavour: str) -> None:
        self._flavour = flavour
        self._begun = b""

    def __call__(self, _descriptor: int, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            print(f"[{self._flavour}] {line.decode(errors='replace')}", flush=True)


def _run_one(lab: Lab, name: str, found: Outcome, arguments: Sequence[str], timeout: float, keep: Path | None) -> None:
    began = time.monotonic()
    try:
        with Guest.boot(lab, found.flavour) as guest:
            argv = [PYTHON, f"/checkout/tests/campaigns/{name}.py", *arguments]
            env = {"PYTHONPATH": "/checkout", "PYTHONDONTWRITEBYTECODE": "1"}
            found.code = guest.run(argv, cwd="/checkout", env=env, timeout=timeout, sink=_Lines(found.flavour)).code
            written = guest.out / "campaign.json"
            if keep is not None and written.exists():
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}-{found.flavour}.json").write_bytes(written.read_bytes())
    except Exception as error:
        found.code = 1
        print(f"[{found.flavour}] {error}", flush=True)
    found.seconds = time.monotonic() - began
