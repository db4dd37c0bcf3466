"""Counts how often command lines read their configuration.

`python -m tests.unit.support.counted_reads` reads command lines from stdin and prints the numbers, as JSON.
Each one runs in a child of this process, which has imported the package.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.lab.inside.zygote import import_all
from tests.unit.support.command_line import CHECKOUT
from zsnapdb.cli import app
from zsnapdb.config import settings

_SECONDS = 30
"""A command that ends later goes on until a signal: it is ended by one."""


def reads(lines: Sequence[Sequence[str]], environment: Mapping[str, str]) -> list[int]:
    """Run every command line, one after the other, and return how often each one has read a configuration."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    numbers: list[int] = json.loads(done.stdout)
    return numbers


def _reads_of(words: Sequence[str], whole: app.Command) -> int:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run(words, whole, writing)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as counted:
        return len(counted.read())


def _run(words: Sequence[str], whole: app.Command, counted: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    load = settings.load

    def noted(*places: object) -> object:
        os.write(counted, b"1")
        return load(*places)  # type: ignore[arg-type]

    settings.load = noted  # type: ignore[assignment]
    signal.alarm(_SECONDS)
    sys.argv = ["zsnapdb", *words]
    try:
        app.main(whole)
    finally:
        os._exit(0)


if __name__ == "__main__":
    import_all()
    built = app.built()
    print(json.dumps([_reads_of(line, built) for line in json.load(sys.stdin)]))
