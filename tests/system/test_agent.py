"""The agent keeps its schedules through crashes, changes of its configuration and its own death. One agent for all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from zsnapdb.planning.agent_jobs import HOST, JobKind, JobName, RunRecord

from .agents import START, Agent, command, good_since
from .in_guest import Lab

pytestmark = pytest.mark.any_server

BACKUP, ARCHIVE = JobName("main", JobKind.BACKUP), JobName("main", JobKind.ARCHIVE)
FORK_SERVER = "zsnapdb.cli.fork_server"
REAP = JobName(HOST, JobKind.REAP)
JOBS = """
[instance.main.agent]
archive = true
backup = { every = "10s" }
"""
QUIET = """
[instance.main.agent]
archive = true
[instance.main.binlog]
interval = "1s"
[instance.main.objectives]
archive_lag = "20s"
rpo = "20s"
"""


@pytest.fixture(scope="module")
def agent(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "repository").mkdir()
    known = Agent(lab, folder, ('url = "s3://backups/lab"', f'url = "file://{folder}/repository"'))
    known.configure(JOBS)
    known.start()
    yield known
    known.end()


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
    os.kill(agent.begun("backup"), signal.SIGKILL)
    agent.until(lambda: agent.record(BACKUP).failures == 1)
    assert "backup main ended with -9" in agent.said.read_text()
    agent.until(good_since(agent, BACKUP, datetime.now(UTC)))
    assert agent.record(BACKUP).failures == 0
    assert agent.children("archive") == [archiver]


def test_a_backup_outlives_the_process_that_forked_it(agent: Agent) -> None:
    began = datetime.now(UTC)
    agent.until(lambda: [pid for pid in agent.children("backup") if is_forked(pid)])
    (server,) = (pid for pid in agent.children() if FORK_SERVER in command(pid))
    os.kill(server, signal.SIGKILL)
    agent.until(good_since(agent, BACKUP, began))
    assert agent.record(BACKUP).failures == 0
    # There is a new one for the jobs after it.
    agent.until(lambda: [pid for pid in agent.children() if FORK_SERVER in command(pid) and pid != server])


def is_forked(pid: int) -> bool:
    """Whether a job was forked: its first environment, that of its server, has no id of a run."""
    with contextlib.suppress(OSError):
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        return bool(variables) and b"\0ZSNAPDB_RUN_ID=" not in variables
    return False


def test_a_configuration_with_errors_is_refused_and_the_next_one_is_used(agent: Agent) -> None:
    agent.configure(JOBS, 'reap = { cron = "61 * * * *" }')
    agent.reload()
    agent.until(lambda: "the configuration stays as it was" in agent.said.read_text())
    refused = datetime.now(UTC)
    agent.until(lambda: agent.record(BACKUP).started > refused)
    agent.configure(JOBS, 'reap = { every = "10s" }')
    agent.reload()
    agent.until(good_since(agent, REAP, refused))
    assert "the configuration was read again" in agent.said.read_text()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_port_that_is_added_opens_when_the_configuration_is_read_again(lab: Lab, agent: Agent) -> None:
    port = free_port()
    agent.configure(JOBS, f'status = {{ every = "1h" }}\n[agent.http]\nport = {port}')
    status = lab.zsnapdb("agent", "status", "--json", config=agent.config).json
    assert "has changed since the agent read it" in status["difference"]
    assert "it does not run status: `kill -HUP" in status["difference"]
    agent.reload()

    def answers() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    agent.until(answers)
    assert lab.zsnapdb("agent", "status", "--json", config=agent.config).json["difference"] is None


def test_a_quiet_server_is_never_late_however_often_it_is_judged(lab: Lab, agent: Agent) -> None:
    """Its archive is late 20 s after the last record. The limit alone says how often there is one."""
    agent.until(good_since(agent, BACKUP, START))
    agent.configure(QUIET.replace('"20s"', '"9s"'))
    refused = lab.zsnapdb("config", "check", config=agent.config)
    assert (refused.code, "12 s is the least" in refused.stderr) == (3, True), refused.stderr
    agent.configure(QUIET)
    assert lab.zsnapdb("config", "check", config=agent.config).code == 0
    before = agent.children("archive")
    agent.reload()
    agent.until(lambda: agent.children("archive") not in ([], before))
    recorded: set[str] = set()

    def judged() -> set[str]:
        """Judge, and return the verdicts about the archive."""
        state = json.loads(lab.zsnapdb("status", "main", "--json", config=agent.config).stdout)
        recorded.add(state["binlog"]["complete_until"])
        return {one["verdict"] for one in state["objectives"] if one["objective"] in ("archive-lag", "rpo")}

    lab.sql("CREATE DATABASE quiet")
    lab.sql("DROP DATABASE quiet")
    agent.until(lambda: judged() == {"met"})
    recorded.clear()
    began = time.monotonic()
    while len(recorded) < 5 or time.monotonic() < began + 22:
        assert judged() == {"met"}


def assert_dead(lab: Lab, agent: Agent) -> None:
    done = lab.zsnapdb("agent", "status", "--json", config=agent.config)
    assert (done.code, json.loads(done.stdout)["is_running"]) == (1, False)


def test_an_agent_that_was_dead_makes_up_for_what_it_missed_once(lab: Lab, agent: Agent) -> None:
    agent.end()
    assert_dead(lab, agent)
    dead_since = datetime.now(UTC) - timedelta(hours=3)
    done = RunRecord(scheduled=dead_since, started=dead_since).ended(dead_since, 0, "", is_good=True)
    agent.records.set_run(REAP, done)
    agent.configure(JOBS, 'reap = { every = "1h" }')
    began = datetime.now(UTC)
    agent.start()
    agent.until(good_since(agent, REAP, began))
    agent.until(lambda: agent.children("archive"))
    agent.until(good_since(agent, BACKUP, began))
    said = agent.said.read_text().splitlines()
    started = [line.split()[-1] for line in said if line.startswith("zsnapdb: reap begins")]
    # At the next full hour the job is due again, and the hour may be full just now.
    due = datetime.strptime(started[0][:16], "%Y%m%dT%H%M%SZ").replace(minute=0, second=0) + timedelta(hours=1)
    assert [run for run in started if run[:16] < f"{due:%Y%m%dT%H%M%SZ}"] == started[:1], said


def test_a_terminated_agent_leaves_no_process_and_no_lock(lab: Lab, agent: Agent) -> None:
    agent.until(lambda: agent.children("backup"))
    jobs = agent.children()
    assert agent.process is not None
    agent.process.terminate()
    assert agent.process.wait(100) == 0, agent.said.read_text()
    assert [pid for pid in jobs if Path(f"/proc/{pid}").exists()] == []
    assert not agent.record(ARCHIVE).is_running
    assert lab.zsnapdb("backup", "--json", config=agent.config).json["backup"]
    assert_dead(lab, agent)
