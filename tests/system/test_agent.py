"""The agent keeps its schedules through crashes, changes of its configuration and its own death. One agent for all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from zsnapdb.agent.records import Records
from zsnapdb.planning.agent.jobs import HOST, JobKind, JobName
from zsnapdb.planning.agent.runs import RunRecord

from .in_guest import Lab, end_process

pytestmark = pytest.mark.any_server

BACKUP, ARCHIVE = JobName("main", JobKind.BACKUP), JobName("main", JobKind.ARCHIVE)
REAP = JobName(HOST, JobKind.REAP)
START = datetime(2001, 1, 1, tzinfo=UTC)
SECTION = """
[instance.main.agent]
archive = true
backup = {{ every = "10s" }}
[agent]
state = "{state}"
{jobs}
"""


class Agent:
    """An agent of the guest, its configuration, its records and what it said."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.records, self.said = lab, Records(folder / "state"), folder / "said"
        self.folder, self.config = folder, folder / "agent.toml"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "repository").mkdir()
        self.configure("")

    def configure(self, jobs: str) -> None:
        base = self.lab.changed(('url = "s3://backups/lab"', f'url = "file://{self.folder}/repository"')).read_text()
        self.config.write_text(base + SECTION.format(jobs=jobs, state=self.records.folder))

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

    def record(self, name: JobName) -> RunRecord:
        """Return the last run of the job; one that never began, if none is known."""
        return self.records.run(name) or RunRecord(scheduled=START, started=START)

    def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
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


@pytest.fixture(scope="module")
def agent(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    known = Agent(lab, tmp_path_factory.mktemp("agent"))
    known.start()
    yield known
    assert known.process is not None
    if known.process.poll() is None:
        for pid in (known.pid, *known.children()):
            end_process(pid)
        known.process.wait()


def good_since(agent: Agent, name: JobName, moment: datetime) -> Callable[[], bool]:
    """Return whether a run of the job has ended well since the moment; the next one may be under way."""
    return lambda: (last := agent.record(name).succeeded) is not None and last > moment


def test_backups_and_the_binlog_archive_run_by_the_schedule(lab: Lab, agent: Agent) -> None:
    agent.until(good_since(agent, BACKUP, START))
    agent.until(lambda: list((agent.folder / "repository").rglob("binlogs/**/*")))
    first = agent.record(BACKUP).scheduled
    agent.until(lambda: agent.record(BACKUP).scheduled > first)
    assert lab.zsnapdb("list", "--json", config=agent.config).json["backups"]
    shown = lab.zsnapdb("agent", "status", "--json", config=agent.config).json
    assert shown["is_running"]
    assert {job["job"] for job in shown["jobs"] if job["last"] is not None} == {"archive", "backup"}


def test_a_job_that_is_killed_fails_alone_and_the_next_run_is_good(agent: Agent) -> None:
    (archiver,) = agent.children("archive")
    agent.until(lambda: agent.children("backup"))
    (backup,) = agent.children("backup")
    os.kill(backup, signal.SIGKILL)
    agent.until(lambda: agent.record(BACKUP).failures == 1)
    assert "backup main ended with -9" in agent.said.read_text()
    agent.until(good_since(agent, BACKUP, datetime.now(UTC)))
    assert agent.record(BACKUP).failures == 0
    assert agent.children("archive") == [archiver]


def test_a_configuration_with_errors_is_refused_and_the_next_one_is_used(agent: Agent) -> None:
    agent.configure('reap = { cron = "61 * * * *" }')
    os.kill(agent.pid, signal.SIGHUP)
    agent.until(lambda: "the configuration stays as it was" in agent.said.read_text())
    refused = datetime.now(UTC)
    agent.until(lambda: agent.record(BACKUP).started > refused)
    agent.configure('reap = { every = "10s" }')
    os.kill(agent.pid, signal.SIGHUP)
    agent.until(good_since(agent, REAP, refused))
    assert "the configuration was read again" in agent.said.read_text()


def test_an_agent_that_was_dead_makes_up_for_what_it_missed_once(lab: Lab, agent: Agent) -> None:
    for pid in (agent.pid, *agent.children()):
        end_process(pid)
    assert agent.process is not None
    agent.process.wait()
    assert not lab.zsnapdb("agent", "status", "--json", config=agent.config).json["is_running"]
    dead_since = datetime.now(UTC) - timedelta(hours=3)
    done = RunRecord(scheduled=dead_since, started=dead_since).ended(dead_since, 0, "", is_good=True)
    agent.records.set_run(REAP, done)
    agent.configure('reap = { every = "1h" }')
    began = datetime.now(UTC)
    agent.start()
    agent.until(good_since(agent, REAP, began))
    agent.until(lambda: agent.children("archive"))
    agent.until(good_since(agent, BACKUP, began))
    said = agent.said.read_text().splitlines()
    assert len([line for line in said if line.startswith("zsnapdb: reap begins")]) == 1, said


def test_a_terminated_agent_leaves_no_process_and_no_lock(lab: Lab, agent: Agent) -> None:
    agent.until(lambda: agent.children("backup"))
    jobs = agent.children()
    assert agent.process is not None
    agent.process.terminate()
    assert agent.process.wait(100) == 0, agent.said.read_text()
    assert [pid for pid in jobs if Path(f"/proc/{pid}").exists()] == []
    assert not agent.record(ARCHIVE).is_running
    assert lab.zsnapdb("backup", "--json", config=agent.config).json["backup"]
    assert not lab.zsnapdb("agent", "status", "--json", config=agent.config).json["is_running"]
