"""A host starts what it was asked for once, tells how far it is, keeps the run as the agent does, and ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import fleet_host
from zsnapdb.agent.records import Records
from zsnapdb.base import run_context
from zsnapdb.config.services import FleetVerb
from zsnapdb.fleet.host_job import JobRefused, JobRunner, LogReader
from zsnapdb.planning.agent_jobs import PauseRecord, RunRecord
from zsnapdb.planning.fleet.jobs import JobAnswer, JobProgress, JobRequest, JobVerdict, job_name, run_id_of


def request(instance: str, verb: FleetVerb = FleetVerb.BACKUP, **more: Any) -> JobRequest:
    at = datetime.now(UTC).replace(microsecond=0)
    fields = {"host": "db1", "run_id": run_context.new_run_id(), "scheduled": at, **more}
    return JobRequest.model_validate({"verb": verb, "instance": instance, **fields})


def made(folder: Path, host: str = "db1", **fleet: Any) -> JobRunner:
    return fleet_host.runner(folder, 7233, host, **fleet)


def done(runner: JobRunner, asked: JobRequest, beat: Callable[[JobProgress], None] = lambda _: None) -> JobAnswer:
    return asyncio.run(asyncio.wait_for(runner.run(asked, beat), 30))


def refused(runner: JobRunner, asked: JobRequest) -> tuple[JobVerdict, str]:
    with pytest.raises(JobRefused) as raised:
        done(runner, asked)
    return raised.value.kind, str(raised.value)


def begun(folder: Path) -> list[dict[str, Any]]:
    path = folder / "calls"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["what"] == "begin"]


def test_a_job_is_kept_where_the_agent_keeps_its_own_and_serves_the_time_for_which_it_was_planned(
    tmp_path: Path,
) -> None:
    runner, asked = made(tmp_path), request("quick")
    beats: list[JobProgress] = []
    answer = done(runner, asked, beats.append)
    assert (answer.exit_code, answer.host, answer.served) == (0, "db1", "")
    records, name = Records(tmp_path / "db1"), job_name(FleetVerb.BACKUP, "quick")
    kept = records.run(name)
    assert kept is not None
    assert (kept.run_id, kept.exit_code) == (asked.run_id, 0)
    assert kept.scheduled == asked.scheduled
    assert records.given(name) is not None
    assert beats
    # The answer was lost: the same is asked again, also as another run for the same time.
    for again in (asked, asked.model_copy(update={"run_id": run_context.new_run_id()})):
        assert done(runner, again).served == asked.run_id
    assert len(begun(tmp_path)) == 1


def test_a_job_that_fails_tells_its_code_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter2-hunter2")
    runner = made(tmp_path)
    runner.environment = dict(os.environ)
    answer = done(runner, request("fails-4-one"))
    assert (answer.exit_code, answer.error) == (4, "preflight")
    assert answer.message == "the pool has no room, ***"
    assert "hunter2" not in answer.model_dump_json()


@pytest.mark.parametrize("code", ["hook", "command", "server", "unreachable", "config", "internal"])
def test_a_text_that_may_quote_others_stays_on_the_host(tmp_path: Path, code: str) -> None:
    log = tmp_path / "log"
    log.write_text(json.dumps({"kind": "error", "error": {"code": code, "message": "pw=x", "hint": ""}}) + "\n")
    assert LogReader(log, "db1", {}).error() == (code, "")


def test_a_log_that_says_anything_tells_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text in (
        "",
        "{",
        "null\n[]\n",
        '{"kind": "error", "error": {"code": "secret-of-mine"}}\n',
        '{"event": "progress", "step": 7}\n',
    ):
        log.write_text(text)
        reader = LogReader(log, "db1", {})
        assert (reader.error(), reader.progress()) == (("", ""), JobProgress(host="db1"))
    log.write_text(json.dumps({"event": "progress", "step": "a\n\x1b[2J" * 99, "done": -1, "total": -5}) + "\n")
    said = LogReader(log, "db1", {}).progress()
    assert (said.done, said.total, len(said.step)) == (0, 0, 80)
    assert said.step.isprintable()


def test_what_a_command_told_people_stays_on_the_host(tmp_path: Path) -> None:
    log = tmp_path / "log"
    told = {"event": "progress", "step": "clone: zfs clone tank/secret@x tank/y", "seconds": 5.1}
    log.write_text(json.dumps({"event": "progress", "step": "verify", "done": 3, "total": 9}) + "\n")
    reader = LogReader(log, "db1", {})
    assert reader.progress() == JobProgress(host="db1", step="verify", done=3, total=9)
    log.write_text(log.read_text() + json.dumps(told) + "\n")
    assert reader.progress() == JobProgress(host="db1")


def test_a_host_that_cannot_now_says_whether_another_may(tmp_path: Path) -> None:
    runner = made(tmp_path, verbs=("backup", "drill"))
    assert refused(runner, request("unknown"))[0] is JobVerdict.NEVER
    assert refused(runner, request("quick", FleetVerb.VERIFY))[0] is JobVerdict.NEVER
    assert refused(runner, request("unknown", FleetVerb.DRILL, host=None))[0] is JobVerdict.ELSEWHERE
    runner.available = lambda: -1
    assert refused(runner, request("quick", FleetVerb.DRILL, host=None))[0] is JobVerdict.ELSEWHERE
    until = datetime.now(UTC) + timedelta(hours=1)
    Records(tmp_path / "db1").set_pause("quick", PauseRecord(until=until, reason="a move"))
    assert refused(runner, request("quick"))[0] is JobVerdict.AGAIN
    assert begun(tmp_path) == []


def test_a_run_that_was_not_good_serves_no_time_of_the_schedule(tmp_path: Path) -> None:
    runner, name = made(tmp_path), job_name(FleetVerb.BACKUP, "fails-6-one")
    asked = request("fails-6-one")
    for failures in (1, 2):
        assert done(runner, asked).exit_code == 6
        kept = Records(tmp_path / "db1").run(name)
        assert kept is not None
        # The agent's time is not served: it begins the backup itself, if the fleet does not have it made.
        assert (kept.scheduled, kept.failures) == (asked.scheduled - timedelta(seconds=1), failures)


def test_a_run_that_found_another_at_work_is_not_kept_so_the_agent_leaves_it_to_the_fleet(tmp_path: Path) -> None:
    assert done(made(tmp_path), request("fails-75-one")).exit_code == 75
    assert Records(tmp_path / "db1").run(job_name(FleetVerb.BACKUP, "fails-75-one")) is None
    assert done(made(tmp_path), request("fails-4-one", FleetVerb.DRILL, host=None)).exit_code == 4
    assert Records(tmp_path / "db1").run(job_name(FleetVerb.DRILL, "fails-4-one")) is None


def test_a_run_of_long_ago_takes_nothing_from_what_is_served(tmp_path: Path) -> None:
    runner, name, now = made(tmp_path), job_name(FleetVerb.BACKUP, "quick"), request("quick")
    done(runner, now)
    old = now.scheduled - timedelta(days=3)
    again = request("quick", run_id=run_id_of(FleetVerb.BACKUP, "quick", old), scheduled=now.scheduled)
    later = again.model_copy(update={"scheduled": now.scheduled + timedelta(seconds=1)})
    assert done(runner, later).exit_code == 0
    kept = Records(tmp_path / "db1").run(name)
    assert kept is not None
    assert (kept.run_id, kept.scheduled) == (later.run_id, now.scheduled)


def test_a_run_of_the_future_by_a_clock_that_was_wrong_serves_nothing(tmp_path: Path) -> None:
    name, records = job_name(FleetVerb.BACKUP, "quick"), Records(tmp_path / "db1")
    future = datetime.now(UTC) + timedelta(days=300)
    ahead = RunRecord(run_id="of-the-agent", scheduled=future, started=future, finished=future, exit_code=0)
    records.set_run(name, ahead)
    asked = request("quick")
    assert done(made(tmp_path), asked).served == "", "a backup is made"
    kept = records.run(name)
    assert kept is not None
    assert (kept.run_id, kept.scheduled) == (asked.run_id, asked.scheduled)


def test_a_bad_run_after_one_of_the_future_serves_no_time_either(tmp_path: Path) -> None:
    name, records = job_name(FleetVerb.BACKUP, "fails-6-one"), Records(tmp_path / "db1")
    future = datetime.now(UTC) + timedelta(days=300)
    records.set_run(name, RunRecord(scheduled=future, started=future, finished=future, exit_code=0))
    asked = request("fails-6-one")
    assert done(made(tmp_path), asked).exit_code == 6
    kept = records.run(name)
    assert kept is not None
    assert kept.scheduled < asked.scheduled


def test_a_pause_of_an_instance_holds_every_job_of_it(tmp_path: Path) -> None:
    runner = made(tmp_path)
    until = datetime.now(UTC) + timedelta(hours=1)
    Records(tmp_path / "db1").set_pause("quick", PauseRecord(until=until, reason="a move"))
    assert refused(runner, request("quick", FleetVerb.VERIFY))[0] is JobVerdict.AGAIN
    # What any host may do waits for no pause of this one.
    assert refused(runner, request("quick", FleetVerb.DRILL, host=None))[0] is JobVerdict.ELSEWHERE
    assert begun(tmp_path) == []


def test_what_left_the_fleet_does_nothing_for_it(tmp_path: Path) -> None:
    runner = made(tmp_path)
    left = runner.load().model_copy(update={"fleet": None})
    runner.load = lambda: left
    assert refused(runner, request("quick")) == (JobVerdict.AGAIN, "db1 has left the fleet")
    assert refused(runner, request("quick", FleetVerb.DRILL, host=None))[0] is JobVerdict.ELSEWHERE


def test_a_drill_that_a_host_did_a_moment_ago_is_given_to_another_one_at_once(tmp_path: Path) -> None:
    """Else the drill of a dead host waits there for longer and longer, and another host is idle."""
    runner, drill = made(tmp_path, spacing=60), request("quick", FleetVerb.DRILL, host=None)
    assert done(runner, drill).exit_code == 0
    again = drill.model_copy(update={"run_id": run_context.new_run_id()})
    assert refused(runner, again) == (JobVerdict.ELSEWHERE, "drill quick began a moment ago on db1")
    assert refused(runner, again.model_copy(update={"host": "db1"}))[0] is JobVerdict.AGAIN


def test_a_command_that_will_not_end_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    runner = made(tmp_path)
    runner.unwind = 0.3

    async def cancelled() -> None:
        task = asyncio.create_task(runner.run(request("slow-one"), lambda _: None))
        while not begun(tmp_path):
            await asyncio.sleep(0.02)
        os.kill(begun(tmp_path)[0]["pid"], signal.SIGSTOP)
        task.cancel()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at = time.monotonic()
    asyncio.run(asyncio.wait_for(cancelled(), 30))
    assert time.monotonic() - at < 20
    kept = Records(tmp_path / "db1").run(job_name(FleetVerb.BACKUP, "slow-one"))
    assert kept is not None
    assert (kept.exit_code, kept.is_lost) == (-signal.SIGKILL, False)
    assert not Path(f"/proc/{begun(tmp_path)[0]['pid']}").exists()
