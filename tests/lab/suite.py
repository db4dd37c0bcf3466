"""Runs everything that is checked: lint, types, unit tests, system tests in guests of both flavours, samples of campaigns, fault tests."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import campaign
from .guest import CHECKOUT, Guest, Lab
from .host import Bind, in_root

PYTEST = ("/opt/venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q")
LINT = (
    ("ruff", "check", "--no-cache", "."),
    ("ruff", "format", "--no-cache", "--check", "."),
    ("mypy", "--cache-dir=/tmp/mypy", "zsnapdb"),
)
KINDS = ("unit", "system", "campaigns", "faults")
SAMPLES = {
    "archive": ("--rounds", "1", "--seed", "7"),
    "clones": ("--rounds", "3", "--seed", "7"),
    "lockfree": ("--rounds", "5", "--seed", "7"),
    "flush0": ("--rounds", "3", "--seed", "7"),
    "points": ("--points", "2", "--seconds", "6", "--seed", "7"),
}
"""The small part of each campaign that every run of the tests makes; the whole of one is `campaign NAME`."""
LAB_FAULTS = "tests/faults/test_lab.py"
_NO_TESTS = 5
"""Exit status of pytest when nothing was selected."""
_SUMMARY = re.compile(r"(\d+) (passed|failed|error|errors|skipped)\b")


@dataclass
class Stage:
    """One part of the run and what came of it."""

    name: str
    seconds: float = 0.0
    code: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, output: str) -> None:
        """Add the numbers of pytest's closing line."""
        for line in output.splitlines()[-3:]:
            for number, word in _SUMMARY.findall(line):
                self.counts[word.rstrip("s") if word == "errors" else word] = int(number)


def _inside(lab: Lab, argv: Sequence[str]) -> list[str]:
    """Return an argv that runs in the guest root as a chroot, with checkout and cache at their own paths."""
    binds = [Bind(CHECKOUT, str(CHECKOUT)), Bind(lab.cache.top, str(lab.cache.top))]
    env = {"ZSNAPDB_LAB_CACHE": str(lab.cache.top), "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
    return in_root(lab.root, argv, binds, cwd=str(CHECKOUT), env=env, own_processes=True)


def _local(lab: Lab, stage: Stage, argv: Sequence[str], *, at_once: bool = True) -> None:
    """Run a command of a stage in the chroot, showing its output: as it comes, or `at_once` false: when it is done, not mixed with another's."""
    began = time.monotonic()
    process = subprocess.Popen(_inside(lab, argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
    output = bytearray()
    try:
        assert process.stdout is not None
        while data := process.stdout.read(4096):
            if at_once:
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
            output += data
        code = process.wait()
    except BaseException:
        # In a thread of its own nobody else would hear of it.
        stage.code = 1
        process.kill()
        process.wait()
        raise
    stage.seconds += time.monotonic() - began
    stage.code = stage.code or code
    stage.count(output.decode(errors="replace"))
    if not at_once:
        print(f"--- {stage.name} ({stage.seconds:.0f} s)\n{output.decode(errors='replace')}", flush=True)


def _faults(lab: Lab, arguments: Sequence[str]) -> list[Stage]:
    """Run the fault tests: those of the lab itself alone, as they count what is on the machine; then both flavours side by side."""
    own = arguments_for("faults", arguments)
    if any(word.startswith("-k") or "::" in word for word in own):
        stage = Stage("faults")
        _local(lab, stage, [*PYTEST, *own])
        return [stage]
    files = [word for word in own if word.startswith("tests/faults")]
    lane = Stage("faults, lab")
    if any(word.rstrip("/") == "tests/faults" or word == LAB_FAULTS for word in files):
        print(f"--- {lane.name}", flush=True)
        _local(lab, lane, [*PYTEST, LAB_FAULTS, *(word for word in own if word not in files)])
    rest = [word for word in own if word != LAB_FAULTS]
    if not any(word.startswith("tests/faults") for word in rest):
        return [lane]
    pair = [(Stage("faults, mysql"), "not mariadb"), (Stage("faults, mariadb"), "mariadb")]
    threads = [
        threading.Thread(target=_local, args=(lab, stage, [*PYTEST, *rest, f"--ignore={LAB_FAULTS}", "-k", chosen]), kwargs={"at_once": False})
        for stage, chosen in pair
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stages = [stage for stage, _ in pair]
    if any(stage.code == 0 for stage in stages):
        # A file whose tests are all of one flavour leaves the other lane without any.
        stages = [stage for stage in stages if stage.code != _NO_TESTS]
    return [lane, *stages] if lane.counts else stages


def _in_guest(lab: Lab, stage: Stage, flavour: str, arguments: Sequence[str]) -> None:
    """Run the system tests in a guest of the flavour; its output is shown when it is done, not mixed with another's."""
    began = time.monotonic()
    output = bytearray()
    try:
        with Guest.boot(lab, flavour) as guest:
            argv = [*PYTEST, *arguments]
            env = {"PYTHONPATH": "/checkout", "LAB_FLAVOUR": flavour, "PYTHONDONTWRITEBYTECODE": "1"}
            stage.code = guest.run(argv, cwd="/checkout", env=env, timeout=2400, sink=lambda _, data: output.extend(data)).code
    except Exception as error:
        stage.code = 1
        output += f"\n{error}\n".encode()
    stage.seconds = time.monotonic() - began
    text = output.decode(errors="replace")
    stage.count(text)
    print(f"--- system, {flavour} ({stage.seconds:.0f} s)\n{text}", flush=True)


def _campaigns(lab: Lab, arguments: Sequence[str]) -> list[Stage]:
    """Run a sample of each campaign (or of those the arguments name), in guests of both flavours side by side."""
    named = [name for name in campaign.known() if any(f"tests/campaigns/{name}" in word for word in arguments)]
    stages = []
    for name in named or campaign.known():
        print(f"--- campaign {name}", flush=True)
        for found in campaign.run(lab, name, ("mysql", "mariadb"), SAMPLES[name], timeout=1200):
            word = "passed" if found.code == 0 else "failed"
            stages.append(Stage(f"{name}, {found.flavour}", found.seconds, found.code, {word: 1}))
    return stages


def wanted(arguments: Sequence[str]) -> list[str]:
    """Return which kinds of test the arguments name; all (and lint) if they name none."""
    named = [kind for kind in KINDS if any(f"tests/{kind}" in word for word in arguments)]
    return named or ["lint", *KINDS]


def arguments_for(kind: str, arguments: Sequence[str]) -> list[str]:
    """Return pytest's arguments for one kind of test: what names another kind is left out; what names none goes to each."""
    others = [f"tests/{other}" for other in KINDS if other != kind]
    own = [word for word in arguments if not any(other in word for other in others)]
    return own if any(f"tests/{kind}" in word for word in own) else [f"tests/{kind}", *own]


def run(lab: Lab, arguments: Sequence[str]) -> int:
    """Run what is wanted, print a table and a closing line, and return 0 only if nothing failed."""
    stages: list[Stage] = []
    kinds = wanted(arguments)
    if "lint" in kinds:
        stage = Stage("lint and types")
        for argv in LINT:
            print(f"--- {' '.join(argv)}", flush=True)
            _local(lab, stage, argv)
        stages.append(stage)
    if "unit" in kinds:
        stage = Stage("unit")
        print("--- unit", flush=True)
        _local(lab, stage, [*PYTEST, *arguments_for("unit", arguments)])
        stages.append(stage)
    if "system" in kinds:
        pair = [Stage("system, mysql"), Stage("system, mariadb")]
        own = arguments_for("system", arguments)
        threads = [threading.Thread(target=_in_guest, args=(lab, s, s.name.split()[-1], own)) for s in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stages += pair
    if "campaigns" in kinds:
        stages += _campaigns(lab, arguments)
    if "faults" in kinds:
        stages += _faults(lab, arguments)
    return _conclude(stages)


def _conclude(stages: list[Stage]) -> int:
    print(f"\n{'stage':<20} {'seconds':>8}  result")
    for stage in stages:
        words = ", ".join(f"{number} {word}" for word, number in stage.counts.items())
        print(f"{stage.name:<20} {stage.seconds:8.0f}  {'ok' if stage.code == 0 else 'FAILED'} {words}")
    passed = sum(s.counts.get("passed", 0) for s in stages)
    failed = sum(s.counts.get("failed", 0) + s.counts.get("error", 0) for s in stages)
    silent = sum(1 for s in stages if s.code != 0 and not (s.counts.get("failed") or s.counts.get("error")))
    skipped = sum(s.counts.get("skipped", 0) for s in stages)
    print(f"{passed} passed, {failed + silent} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.stdout.flush()
    return 0 if all(s.code == 0 for s in stages) else 1
