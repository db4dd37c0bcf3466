"""What the agent costs a host: its own process, whose jobs are other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.unit.support.command_line import CHECKOUT
from zsnapdb.agent.records import Records
from zsnapdb.planning.agent.jobs import JobKind, JobName

VERIFY = JobName("main", JobKind.VERIFY)
CONFIGURATION = """
[agent]
state = "{folder}/state"
metrics = "{folder}/zsnapdb.prom"
status = {{ every = "1d" }}
[agent.http]
port = 0
[instance.main]
socket = "/x"
repository = "here"
[instance.main.agent]
verify = {{ every = "10s" }}
[repository.here]
url = "file://{folder}/none"
"""


def most_memory(pid: int) -> int:
    """Return the most memory in bytes that the process ever had. Source: proc(5), VmHWM, which is in KiB."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def descriptors(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


def until(agent: subprocess.Popen[bytes], is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert agent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_agent_needs_less_than_80_mib_and_keeps_no_descriptor_of_an_ended_job(tmp_path: Path) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(CONFIGURATION.format(folder=tmp_path))
    records = Records(tmp_path / "state")

    def ended() -> datetime | None:
        run = records.run(VERIFY)
        return run.finished if run is not None else None

    argv = [sys.executable, "-m", "zsnapdb", "agent", "--config", str(config)]
    said = (tmp_path / "said").open("wb")
    agent = subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdin=subprocess.DEVNULL, stdout=said, stderr=said
    )
    try:
        until(agent, lambda: ended() is not None)
        first, before = ended(), descriptors(agent.pid)
        until(agent, lambda: ended() not in (None, first))
        until(agent, lambda: descriptors(agent.pid) <= before)
        assert most_memory(agent.pid) < 80 << 20
    finally:
        agent.terminate()
        agent.wait(100)
        said.close()
