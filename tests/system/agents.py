"""An agent in a guest: it is started, told to read its configuration again, killed, and waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.agent.records import Records
from zsnapdb.planning.agent_jobs import JobName, RunRecord

from .in_guest import Lab, end_process

START = datetime(2001, 1, 1, tzinfo=UTC)


class Agent:
    """An agent of the guest, its configuration, its records and what it said."""

    def __init__(self, lab: Lab, folder: Path, *replacements: tuple[str, str]) -> None:
        """Make the folder of an agent. Its configuration is that of the lab with these texts replaced."""
        self.base, self.records, self.said = lab.changed(*replacements), Records(folder / "state"), folder / "said"
        self.folder, self.config = folder, folder / "agent.toml"
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, sections: str, jobs: str = "") -> None:
        """Write the configuration: these sections, and the jobs of the host."""
        agent = f'[agent]\nstate = "{self.records.folder}"\n{jobs}\n'
        self.config.write_text(f"{self.base.read_text()}\n{sections}\n{agent}")

    def reload(self) -> None:
        """Have the agent read its configuration again."""
        os.kill(self.pid, signal.SIGHUP)

    def start(self) -> None:
        self.said.write_bytes(b"")
        with self.said.open("ab") as said:
            argv = [sys.executable, "-m", "zsnapdb", "agent", "--config", str(self.config)]
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self, word: str = "") -> list[int]:
        """Return the running jobs whose commands have this word."""
        known = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
        return [pid for pid in known if parent(pid) == self.pid and (not word or word in command(pid)[3:])]

    def begun(self, word: str) -> int:
        """Wait for a job whose command has this word and that is not running yet, and return its process."""
        before, begun = set(self.children(word)), set[int]()

        def begins() -> bool:
            begun.update(set(self.children(word)) - before)
            return bool(begun)

        self.until(begins)
        return begun.pop()

    def record(self, name: JobName) -> RunRecord:
        """Return the last run of the job; one that never began, if none is known."""
        return self.records.run(name) or RunRecord(scheduled=START, started=START)

    def end(self) -> None:
        """Kill the agent and its jobs, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            for pid in (self.pid, *self.children()):
                # A job may have ended by itself meanwhile.
                with contextlib.suppress(ProcessLookupError):
                    end_process(pid)
            self.process.wait()

    def until(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command(pid: int) -> list[str]:
    """Return the words of a process; none if it has ended. The first three are the interpreter, -m and zsnapdb."""
    with contextlib.suppress(OSError):
        return [*Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    return []


def good_since(agent: Agent, name: JobName, moment: datetime) -> Callable[[], bool]:
    """Return whether a run of the job has ended well since the moment; the next one may be under way."""
    return lambda: (last := agent.record(name).succeeded) is not None and last > moment
