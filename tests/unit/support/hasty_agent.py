"""The agent as a program whose clock only advances while no job of it runs: `python -m … CONFIG FOLDER RUNS`.

So a schedule takes as long as its jobs, however busy the machine is. After RUNS runs it ends, and prints a line of
JSON: the open descriptors after each run, and the peak memory of the process (bytes).
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import zsnapdb.cli.app
from zsnapdb.agent.daemon import ConfigurationFile, serve
from zsnapdb.agent.job_starter import JobStarter
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.host import Host

__all__ = ["zsnapdb"]


@dataclass
class HastyAgent:
    """The clock of the agent, and the request to stop after some runs."""

    config: Path
    runs: int
    time: datetime = datetime(2026, 11, 20, tzinfo=UTC)
    descriptors: list[int] = field(default_factory=list)
    _running: int = 0

    def tell(self, line: str) -> None:
        """Count the running jobs."""
        if " begins, run " in line:
            self._running += 1
        elif " ended with " in line:
            self._running -= 1
            self.descriptors.append(len(os.listdir("/proc/self/fd")))

    def is_set(self) -> bool:
        """Whether there were enough runs."""
        return len(self.descriptors) >= self.runs and not self._running

    def wait(self, seconds: float) -> bool:
        """Let time pass: instantly if no job runs, and really if one does."""
        if self._running:
            time.sleep(0.05)
        else:
            self.time += timedelta(seconds=seconds)
        return self.is_set()

    def take(self) -> bool:
        """Never request a reload of the configuration."""
        return False

    def serve(self, folder: Path) -> None:
        """Run the agent until the stop."""
        environment = {**os.environ, "ZSNAPDB_CONFIG": str(self.config)}
        serve(
            ConfigurationFile(self.config, lambda: load(self.config)),
            JobStarter(environment),
            Host(run=folder, now=lambda: self.time),
            self,
            self,
            self.tell,
        )


def most_memory() -> int:
    """Return the peak memory of this process in bytes. Source: proc(5), VmHWM, which is in KiB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    hasty = HastyAgent(Path(sys.argv[1]), int(sys.argv[3]))
    hasty.serve(Path(sys.argv[2]))
    print(json.dumps({"descriptors": hasty.descriptors, "most_memory": most_memory()}))
