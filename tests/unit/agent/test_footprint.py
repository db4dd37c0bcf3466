"""What the agent costs a host: its own process, whose jobs are other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.unit.support.command_line import CHECKOUT

RUNS = 6
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


def test_the_agent_needs_less_than_80_mib_and_keeps_no_descriptor_of_an_ended_job(tmp_path: Path) -> None:
    config, run = tmp_path / "zsnapdb.toml", tmp_path / "run"
    config.write_text(CONFIGURATION.format(folder=tmp_path))
    run.mkdir()
    argv = [sys.executable, "-m", "tests.unit.support.hasty_agent", str(config), str(run), str(RUNS)]
    done = subprocess.run(
        argv, cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)
    assert len(cost["descriptors"]) == RUNS
    # From the second job on there is the line to the fork server.
    assert cost["descriptors"][-1] <= cost["descriptors"][1]
    assert 10 << 20 < cost["most_memory"] < 80 << 20
