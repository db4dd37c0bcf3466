"""Measures what each command costs before it does anything, and what the start of a job of the agent costs.

    python3 tests/bench/starts.py [--rounds 7] [--json FILE]

- The processor seconds until a command has imported what its functions import (`tests/unit/test_loaded.py` has them).
- The processor seconds of a job (`zsnapdb list` of a repository that does not exist): started from nothing, and
  forked from the agent's fork server, the server's own work included; the memory of that server.

Medians. Processor seconds of a machine on which other things run are larger than those of an idle one: the import of
pydantic and typer alone is measured beside them. It runs by itself; no guest is needed. The package is compiled first.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import Figure
from tests.unit.support.command_line import CHECKOUT
from tests.unit.test_loaded import COMMANDS, imports_of
from zsnapdb.agent.job_starter import JobStarter

GOAL, JOB_GOAL = "<= 0.2", "<= 0.05"
CONNECTING = ("snapshot", "backup", "clone create", "query", "doctor")
"""Commands that open a connection to a server as a rule: the library of connections is counted, too."""
AS_MAIN = "import zsnapdb.cli.app\nfrom zsnapdb.cli.process_attributes import collect_rarely\ncollect_rarely()"
"""What `zsnapdb.cli.app.main` does before a command imports anything."""
CONFIGURATION = """
[repository.here]
url = "file:///nonexistent"
[instance.main]
volumes = { data = "tank/data" }
repository = "here"
"""
RUN_ID = "20260101T000000Z-00000000"


def processor(code: str, rounds: int) -> float:
    """Return the processor seconds of an interpreter that runs the code; the median."""
    seconds = []
    for _ in range(rounds):
        process = subprocess.Popen([sys.executable, "-c", code], env=environment(), stdout=subprocess.DEVNULL)
        used = os.wait4(process.pid, 0)[2]
        process.returncode = 0
        seconds.append(used.ru_utime + used.ru_stime)
    return statistics.median(seconds)


def environment() -> dict[str, str]:
    """Return the environment of what is measured: bytecode is used, as where the package is installed."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**known, "PYTHONPATH": str(CHECKOUT), "ZSNAPDB_CONFIG": "/nonexistent"}


class MeasuredStarts:
    """Jobs of a starter, and what each has cost."""

    def __init__(self, folder: Path) -> None:
        (folder / "zsnapdb.toml").write_text(CONFIGURATION)
        own = {"ZSNAPDB_CONFIG": str(folder / "zsnapdb.toml")}
        self.starter, self.log = JobStarter({**environment(), **own}), folder / "log"

    def one(self) -> float:
        """Run a job; return its processor seconds, and those of the fork server meanwhile."""
        before, server = os.times(), self.of_server()
        job = self.starter.start(("list",), self.log, RUN_ID)
        while job.poll() is None:
            time.sleep(0.005)
        after = os.times()
        own = after.children_user + after.children_system - before.children_user - before.children_system
        # A server that was only just started is no part of this job.
        return own + (self.of_server() - server if server else 0.0)

    def of_server(self) -> float:
        """Return the processor seconds of the server and its ended children; 0 if none is ready."""
        server = self.starter.server
        if server is None or not server.is_ready():
            return 0.0
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def until_ready(self) -> None:
        """Wait for the server. RuntimeError if it has ended."""
        while not self.of_server():
            if self.starter.server is None or self.starter.server.has_ended():
                raise RuntimeError("the fork server has ended")
            time.sleep(0.05)

    def memory(self) -> float:
        """Return the proportional memory of the server, in MiB. Source: proc(5), smaps_rollup."""
        assert self.starter.server is not None
        text = Path(f"/proc/{self.starter.server.pid}/smaps_rollup").read_text()
        (line,) = (line for line in text.splitlines() if line.startswith("Pss:"))
        return int(line.split()[1]) / 1024


def figures(rounds: int) -> dict[str, Figure]:
    """Return the figures by name."""
    measured = {"pydantic_and_typer": Figure(processor("import typer, pydantic.types, pydantic.main", rounds), "s")}
    for command in COMMANDS:
        name = command.replace(" --", "_").replace(" ", "_")
        connects = "import zsnapdb.mysql.connection" if command in CONNECTING else ""
        code = f"{AS_MAIN}\n{imports_of(command)}\n{connects}"
        measured[f"imports_of_{name}"] = Figure(processor(code, rounds), "s", GOAL)
    with tempfile.TemporaryDirectory() as folder:
        jobs = MeasuredStarts(Path(folder))
        try:
            measured["job_from_nothing"] = Figure(statistics.median(jobs.one() for _ in range(2)), "s")
            jobs.until_ready()
            measured["job_forked"] = Figure(sum(jobs.one() for _ in range(4 * rounds)) / (4 * rounds), "s", JOB_GOAL)
            measured["fork_server_memory"] = Figure(jobs.memory(), "MiB")
        finally:
            jobs.starter.close()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what commands and jobs cost before they do anything.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    compileall.compile_dir(CHECKOUT / "zsnapdb", quiet=1)
    measured = figures(options.rounds)
    for name, figure in measured.items():
        print(f"{name:28} {figure.value:8.3f} {figure.unit:4} {figure.goal or ''}")
    if options.json:
        options.json.write_text(
            json.dumps({"figures": {name: figure.document() for name, figure in measured.items()}}, indent=1)
        )


if __name__ == "__main__":
    main()
