"""The agent keeps schedules through crashes, steps of the clock, slow and failing jobs; nothing overlaps."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.support.agent_month import AgentMonth, MemoryRecords
from tests.unit.support.command_line import CHECKOUT, zsnapdb
from zsnapdb.agent import supervisor
from zsnapdb.agent.children import start, work_of
from zsnapdb.agent.records import Records, pause
from zsnapdb.base.errors import ConfigError
from zsnapdb.base.service_manager import notify
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent_jobs import HOST, JobKind, JobName, PauseRecord, RunRecord, jitter, jobs_of, run_one_job

CONFIGURATION = """
[agent]
timezone = "Europe/Berlin"
reap = {{ every = "30m" }}
[instance.main]
socket = "/x"
repository = "here"
[instance.main.agent]
{jobs}
[instance.other]
socket = "/y"
repository = "here"
[instance.other.agent]
backup = {{ cron = "5 * * * *" }}
[repository.here]
url = "file:///nowhere"
[repository.there]
url = "file:///elsewhere"
"""
JOBS = """
archive = true
backup = { cron = "17 * * * *", jitter = "5m" }
full = { cron = "30 2 * * 0" }
verify = { cron = "0 4 * * *" }
drill = { cron = "30 2 * * *" }
prune = { cron = "41 5 * * *" }
"""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BACKUP, DRILL, ARCHIVE = ("backup", "main"), ("drill", "main"), ("binlog", "archive", "main")


def settings(jobs: str = JOBS) -> Settings:
    return parse(CONFIGURATION.format(jobs=jobs), "test")


@pytest.fixture
def month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentMonth:
    """An agent that starts before clocks are set back. It looks every five minutes, which is a hundred times faster."""
    monkeypatch.setattr(supervisor, "LONGEST_WAIT", 300.0)
    return AgentMonth(settings(), MemoryRecords(tmp_path), datetime(2026, 10, 24, 20, 1, tzinfo=UTC))


def check_no_overlap(month: AgentMonth) -> None:
    """Check that of each instance no two runs were at work at once, the archive apart."""
    for instance in ("main", "other"):
        runs = [run for run in month.runs if instance in run.words and run.words != ARCHIVE]
        for earlier, later in pairwise(runs):
            assert earlier.ended is not None
            assert earlier.ended <= later.began, (earlier, later)


def slow(words: tuple[str, ...]) -> tuple[float, int]:
    """A drill takes three hours; the archive runs on."""
    return (1e9, 0) if words == ARCHIVE else (3 * 3600.0, 0) if words == DRILL else (300.0, 0)


def test_in_a_month_with_clocks_set_back_every_schedule_is_kept_and_nothing_overlaps(month: AgentMonth) -> None:
    month.answer = slow
    month.boot()
    month.live(days=31)
    check_no_overlap(month)
    assert len(month.started(*DRILL)) == 31
    assert len(month.started("backup", "main", "--full")) == 5
    assert len(month.started("reap")) == 31 * 48
    assert len(month.started("backup", "other")) == 31 * 24
    assert len(month.started(*ARCHIVE)) == 1
    pauses = [later - earlier for earlier, later in pairwise(month.started(*BACKUP))]
    assert max(pauses) <= 4 * HOUR + timedelta(minutes=10)
    assert Counter(pause <= HOUR + timedelta(minutes=10) for pause in pauses)[True] > 600


def test_local_snapshots_are_taken_beside_a_backup_that_takes_long(tmp_path: Path) -> None:
    jobs = 'snapshot = { every = "1m" }\nbackup = { cron = "0 * * * *" }\n'
    month = AgentMonth(settings(jobs), MemoryRecords(tmp_path), datetime(2026, 10, 1, 12, 0, tzinfo=UTC))
    month.answer = lambda words: (1800.0 if words == BACKUP else 2.0, 0)
    month.boot()
    month.live(hours=3)
    assert len(month.started(*BACKUP)) == 2
    taken = month.started("snapshot", "main")
    assert 178 <= len(taken) <= 180
    assert max(later - earlier for earlier, later in pairwise(taken)) <= timedelta(seconds=75)


def test_clocks_set_forward_leave_no_drill_out(month: AgentMonth) -> None:
    month.time = datetime(2027, 3, 26, 12, 0, tzinfo=UTC)
    month.boot()
    month.live(days=4)
    assert len(month.started(*DRILL)) == 4


def test_what_was_missed_is_made_up_for_once(month: AgentMonth) -> None:
    month.boot()
    month.live(hours=30)
    month.crash()
    before = Counter(run.words for run in month.runs)
    month.live(days=9)
    month.boot()
    month.live(minutes=50)
    after = Counter(run.words for run in month.runs)
    for words in (DRILL, ("verify", "main"), ("prune", "main"), ("backup", "main", "--full")):
        assert after[words] - before[words] == 1, words
    check_no_overlap(month)


def test_a_run_that_a_crash_cut_off_begins_again_at_once(month: AgentMonth) -> None:
    month.answer = slow
    month.boot()
    month.live(hours=4, minutes=45)
    assert [run.ended for run in month.runs if run.words == DRILL] == [None]
    month.crash()
    month.time += timedelta(minutes=1)
    month.boot()
    month.live(minutes=15)
    assert len(month.started(*DRILL)) == 2
    assert len(month.started(*ARCHIVE)) == 2
    for kind in (JobKind.DRILL, JobKind.ARCHIVE):
        again = month.records.run(JobName("main", kind))
        assert again is not None
        assert (again.is_running, again.failures) == (True, 0)


def test_a_run_that_the_end_of_the_agent_cut_off_is_made_up_for(month: AgentMonth) -> None:
    month.answer = slow
    month.boot()
    month.live(hours=4, minutes=45)
    assert month.agent is not None
    month.agent.end(lambda seconds: None, 50.0)
    assert month.agent.running == ()
    month.boot()
    month.live(minutes=15)
    assert len(month.started(*DRILL)) == 2


@pytest.mark.parametrize("hours", [-5, -700, 5])
def test_a_step_of_the_clock_stops_no_job(month: AgentMonth, hours: int) -> None:
    month.answer = slow
    month.boot()
    month.live(hours=20)
    month.clock_error = timedelta(hours=hours)
    count, stepped = len(month.started(*BACKUP)), month.time
    month.live(hours=12)
    assert len(month.started(*BACKUP)) - count >= 8
    assert len([when for when in month.started(*BACKUP) if when < stepped + 3 * HOUR + timedelta(minutes=30)]) > count
    check_no_overlap(month)


def test_a_job_that_finds_another_run_at_work_begins_again_soon(month: AgentMonth) -> None:
    month.answer = lambda words: (1.0, 75 if words == BACKUP and len(month.started(*BACKUP)) < 3 else 0)
    month.boot()
    month.live(hours=1)
    started = month.started(*BACKUP)[:4]
    assert started[3] - started[0] < timedelta(minutes=20)
    month.live(hours=1)
    assert len(month.started(*BACKUP)) == 5


def test_a_run_that_found_another_one_at_work_has_not_failed(month: AgentMonth) -> None:
    month.answer = lambda words: (1.0, 75 if words == BACKUP else 0)
    month.boot()
    month.live(hours=2)
    last = month.records.run(JobName("main", JobKind.BACKUP))
    assert last is not None
    assert (last.failures, last.succeeded) == (0, None)


def test_an_archive_that_keeps_failing_begins_again_ever_later(month: AgentMonth) -> None:
    month.answer = lambda words: (1.0, 5 if words == ARCHIVE else 0)
    month.boot()
    month.live(days=1)
    assert 20 < len(month.started(*ARCHIVE)) < 40


def test_a_failed_run_is_counted_until_a_good_one(month: AgentMonth) -> None:
    codes = iter([6, 6, 0])
    month.answer = lambda words: (1.0, next(codes, 0) if words == BACKUP else 0)
    month.boot()
    records, name = month.records, JobName("main", JobKind.BACKUP)
    seen = []
    for _ in range(3):
        month.live(hours=1)
        last = records.run(name)
        assert last is not None
        seen.append((last.exit_code, last.failures, last.succeeded is not None))
    assert seen == [(6, 1, False), (6, 2, False), (0, 0, True)]


def test_a_run_that_takes_longer_than_its_timeout_is_stopped(month: AgentMonth) -> None:
    month.settings = settings('backup = { every = "1h", timeout = "10m" }')
    month.answer = lambda words: (1e9, 0)
    month.boot()
    month.live(hours=3)
    runs = [run for run in month.runs if run.words == BACKUP]
    assert len(runs) == 3
    assert all(run.ended and run.ended - run.began <= timedelta(minutes=20) for run in runs[:2])


def test_a_job_that_does_nothing_is_stopped_and_then_killed_and_the_others_go_on(month: AgentMonth) -> None:
    month.answer = slow
    month.hanging = month.stubborn = frozenset({DRILL})
    month.boot()
    month.live(hours=12)
    (drill,) = [run for run in month.runs if run.words == DRILL]
    assert drill.ended is not None
    assert HOUR + timedelta(minutes=5) <= drill.ended - drill.began <= HOUR + timedelta(minutes=15)
    assert any("drill main is stopped: it has done nothing for" in line for line in month.said)
    assert month.agent is not None
    assert not month.agent.is_stuck
    assert [run.ended for run in month.runs if run.words == ARCHIVE] == [None]


def test_a_job_that_nothing_ends_lets_the_watchdog_starve(month: AgentMonth) -> None:
    month.answer = slow
    month.hanging = month.immortal = frozenset({DRILL})
    month.boot()
    month.live(hours=5, minutes=20)
    assert month.agent is not None
    assert not month.agent.is_stuck
    month.live(minutes=40)
    assert month.agent.is_stuck


def test_a_process_that_sleeps_does_nothing_and_its_child_that_works_is_seen() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    parent = subprocess.Popen(
        [sys.executable, "-c", "import subprocess\nsubprocess.run(['sh', '-c', 'while :; do :; done'])"]
    )
    try:
        deadline = time.monotonic() + 60
        while sleeper.poll() is None and len(work_of(parent.pid, 0).processes) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        slept, worked = work_of(sleeper.pid, 0), work_of(parent.pid, 0)
        deadline = time.monotonic() + 60
        while work_of(parent.pid, 0).ticks == worked.ticks:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert work_of(sleeper.pid, 0) == slept
    finally:
        for number in work_of(parent.pid, 0).processes:
            os.kill(number, 9)
        sleeper.kill()
        sleeper.wait()
        parent.wait()


def test_in_a_pause_no_job_begins_and_then_one_run_makes_up_for_it(month: AgentMonth) -> None:
    month.boot()
    until = month.time + timedelta(hours=5)
    month.records.set_pause("main", PauseRecord(until=until, reason="maintenance"))
    month.live(hours=5)
    assert not [run for run in month.runs if "main" in run.words]
    assert [run for run in month.runs if "other" in run.words]
    month.live(minutes=10)
    assert len(month.started(*BACKUP)) == 1


def test_another_configuration_is_used_from_then_on_and_one_with_errors_is_not(month: AgentMonth) -> None:
    month.answer = slow
    month.boot()
    month.live(hours=1)
    assert month.agent is not None
    with pytest.raises(ConfigError):
        month.agent.use(settings('backup = { cron = "61 * * * *" }'))
    month.live(hours=1)
    assert len(month.started(*BACKUP)) == 2
    month.agent.use(settings('prune = { every = "1h" }'))
    month.live(hours=3)
    assert len(month.started(*BACKUP)) == 2
    assert len(month.started("prune", "main")) == 3
    assert [run.is_stopped for run in month.runs if run.words == ARCHIVE] == [True]


def test_a_full_disk_ends_no_job_and_begins_none_twice(month: AgentMonth, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    month.boot()
    monkeypatch.setattr(MemoryRecords, "set_run", refused)
    month.live(hours=6)
    assert len(month.started(*BACKUP)) == 6
    assert any("No space left" in line for line in month.said)


def test_a_result_that_the_full_disk_refused_is_kept_within_a_second_of_the_mend(
    month: AgentMonth, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the agent is green after the mend, by the result before, and red again when the next run begins."""

    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    month.answer = lambda words: (60.0, 1 if words == BACKUP else 0)
    month.boot()
    with monkeypatch.context() as full:
        full.setattr(MemoryRecords, "set_run", refused)
        month.live(minutes=90)
        assert month.records.run(JobName("main", JobKind.BACKUP)) is None
    month.live(seconds=1.1)
    kept = month.records.run(JobName("main", JobKind.BACKUP))
    ended = [run for run in month.runs if run.words == BACKUP and run.ended is not None]
    assert kept is not None
    assert (kept.failures, kept.exit_code) == (len(ended), 1)
    told = [line for line in month.said if line.startswith("the result of backup main cannot")]
    assert len(told) == 2 * len(ended), "each result is told once"


def test_records_survive_the_agent_and_one_that_cannot_be_read_counts_as_absent(tmp_path: Path) -> None:
    name, at = JobName("main", JobKind.BACKUP), datetime(2026, 11, 20, tzinfo=UTC)
    record = RunRecord(scheduled=at, started=at).ended(at, 6, "printed", is_good=False)
    records = Records(tmp_path)
    assert records.run(name) is None
    records.set_run(name, record)
    records.set_pause("main", PauseRecord(until=at, reason="moving"))
    assert Records(tmp_path).run(name) == record
    assert Records(tmp_path).pause("main") == PauseRecord(until=at, reason="moving")
    records.set_pause("main", None)
    assert records.pause("main") is None
    (tmp_path / "main" / "backup.json").write_text("{")
    assert records.run(name) is None


def test_jitter_is_the_same_for_the_same_run_and_spreads_the_others() -> None:
    name, at = JobName("main", JobKind.BACKUP), datetime(2026, 11, 20, tzinfo=UTC)
    late = [jitter(name, at + timedelta(hours=number), 600.0) for number in range(100)]
    assert late == [jitter(name, at + timedelta(hours=number), 600.0) for number in range(100)]
    assert (min(late) < 60, max(late) > 540, max(late) < 600) == (True, True, True)


def test_every_job_has_the_command_that_a_person_would_type() -> None:
    known = settings(
        'copy_to = { to = "there", every = "1d" }\ndeep_verify = { every = "1d", arguments = ["--limit", "5"] }'
    )
    assert {str(job.name): " ".join(job.words) for job in jobs_of(known)} == {
        "reap": "reap",
        "copy main": "copy main --to there",
        "deep-verify main": "verify main --deep --limit 5",
        "backup other": "backup other",
    }
    assert run_one_job(known, "reap", None).name.instance == HOST
    with pytest.raises(ConfigError, match="the agent has no job drill"):
        run_one_job(known, "drill", None)
    with pytest.raises(ConfigError, match="no other configured repository"):
        settings('copy_to = { to = "here", every = "1d" }')


def test_a_job_is_a_process_of_its_own_whose_last_lines_are_kept(tmp_path: Path) -> None:
    child = start(
        ["list"],
        tmp_path / "log",
        "20261122T120000Z-0123abcd",
        {**os.environ, "ZSNAPDB_CONFIG": "/none", "PYTHONPATH": str(CHECKOUT)},
    )
    deadline = time.monotonic() + 120
    while child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert child.poll() == 3
    assert "reading the configuration /none" in child.tail()
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_the_service_manager_gets_datagrams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify("READY=1")
        assert manager.recv(100) == b"READY=1"
    notify("WATCHDOG=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_run_and_pause_are_shown_by_status_without_a_running_agent(tmp_path: Path) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(
        f'[agent]\nstate = "{tmp_path}/state"\n[instance.main]\nsocket = "/x"\nrepository = "here"\n'
        f'[instance.main.agent]\nverify = {{ every = "1h" }}\n[repository.here]\nurl = "file://{tmp_path}/none"\n'
    )
    done = zsnapdb("agent", "run", "verify", config=str(config))
    assert done.returncode == 6, done.stderr
    paused = zsnapdb("agent", "pause", "main", "--for", "2h", "--reason", "moving", config=str(config))
    assert "no job of main begins before" in paused.stdout
    shown = zsnapdb("agent", "status", config=str(config)).stdout
    assert "verify main" in shown
    assert "FAILED with 6" in shown
    assert "moving" in shown


@pytest.mark.parametrize("ahead", [timedelta(minutes=30), timedelta(days=3), timedelta(days=400)])
def test_a_pause_made_while_the_clock_was_ahead_lasts_as_long_as_asked(month: AgentMonth, ahead: timedelta) -> None:
    month.boot()
    wrong = month.time + ahead
    month.records.set_pause("main", PauseRecord(since=wrong, until=wrong + 2 * HOUR, reason="maintenance"))
    month.live(hours=2)
    assert not [run for run in month.runs if "main" in run.words]
    month.live(hours=1)
    assert month.started(*BACKUP)
    assert month.started(*ARCHIVE)


def test_pause_records_when_it_was_made(tmp_path: Path) -> None:
    chosen = settings().model_copy(update={"agent": settings().agent.model_copy(update={"state": tmp_path})})
    at = datetime(2026, 11, 20, tzinfo=UTC)
    until = pause(chosen, "main", 3600.0, "maintenance", Host(now=lambda: at))
    assert Records(tmp_path).pause("main") == PauseRecord(since=at, until=until, reason="maintenance")
