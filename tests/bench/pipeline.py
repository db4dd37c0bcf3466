"""Runs a pipe of programs beside an S3 server and measures it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.bench.s3_server import Server
from tests.lab.host import LabError


@dataclass(frozen=True)
class Run:
    """One turn of a contender.

    Wall and processor seconds, processor seconds of the server, and the largest memory of one process in MiB.
    """

    wall: float
    cpu: float
    server: float
    memory: float


def pipeline(
    server: Server,
    argvs: Sequence[Sequence[str]],
    source: Path | None,
    *,
    sink: bool = False,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run the programs as a pipe from the file `source` to nowhere and measure it.

    `sink`: the last one's output goes through a pipe to a reader.
    """
    before = server.cpu()
    children: list[subprocess.Popen[bytes]] = []
    stdin = (source or Path(os.devnull)).open("rb")
    programs = [*argvs, ["cat"]] if sink else list(argvs)
    began = time.monotonic()
    previous: IO[bytes] = stdin
    for number, argv in enumerate(programs):
        last = number == len(programs) - 1
        child = subprocess.Popen(
            argv,
            stdin=previous,
            stdout=subprocess.DEVNULL if last else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env or server.environment(),
        )
        previous.close()
        children.append(child)
        if child.stdout is not None:
            previous = child.stdout
    cpu, memory, failed = 0.0, 0.0, ""
    for number, child in enumerate(children):
        assert child.stderr is not None
        words = child.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            # Of several the last one: those before it only lost their reader.
            failed = f"{' '.join(programs[number][:3])} ended with {child.returncode}: {words[-1500:]}"
        if not (sink and number == len(children) - 1):
            cpu += usage.ru_utime + usage.ru_stime
            memory = max(memory, usage.ru_maxrss / 1024)
    if failed:
        raise LabError(failed)
    wall = time.monotonic() - began
    return Run(wall, cpu, server.cpu() - before, memory)
