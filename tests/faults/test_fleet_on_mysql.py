"""The engine of a fleet on a MySQL that zsnapdb backs up: it is lost, restored, and no job is lost or done twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.lab import relay
from tests.lab.guest import Guest, Lab
from tests.unit.support import site_engine, trial_engine
from tests.unit.support.site_engine import MySQL, SiteEngine
from zsnapdb.base import run_context
from zsnapdb.config.services import FleetVerb
from zsnapdb.planning.fleet.jobs import CONTROL, JOB, FleetJob, JobAnswer

from .in_guest import PYTHON, QUICK

pytestmark = [
    pytest.mark.skipif(site_engine.program(site_engine.SERVER) is None, reason=site_engine.ABSENT),
    # tests/unit/fleet/test_engine.py loses the schedules of an engine, which an operator applies again.
    pytest.mark.seldom,
]
PATIENCE = 600.0
ACCOUNT = """
import pymysql
with pymysql.connect(unix_socket="/run/mysqld/mysqld.sock", user="root").cursor() as cursor:
    cursor.execute("CREATE USER engine IDENTIFIED BY 'secret-of-a-test'")
    for name in ("temporal", "temporal_visibility"):
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"GRANT ALL ON {name}.* TO engine")
"""
T = TypeVar("T")


@dataclass(frozen=True)
class StoredFleet:
    """The engine, and what the fakes of commands wrote."""

    engine: SiteEngine

    def ask(self, ask: Callable[[Any], Coroutine[None, None, T]]) -> T:
        """Return what is answered by the engine."""
        from zsnapdb.fleet.connection import connect

        async def answer() -> T:
            return await ask(await connect(self.engine.settings(), "a test"))

        return asyncio.run(asyncio.wait_for(answer(), PATIENCE))

    def begin(self, instance: str, run: str) -> None:
        """Begin a run, as a schedule does."""
        job = FleetJob(verb=FleetVerb.BACKUP, instance=instance, host="db1", heartbeat=5, run_id=run)
        self.ask(lambda client: client.start_workflow(JOB, job, id=run, task_queue=CONTROL))

    def exit_code(self, run: str) -> int:
        """Wait for the end of the run, and return how its command ended."""

        async def result(client: Any) -> int:
            answer: JobAnswer = await client.get_workflow_handle(run, result_type=JobAnswer).result()
            return answer.exit_code

        return self.ask(result)

    def made(self) -> Counter[str]:
        """Return how often each run made its thing."""
        file = self.engine.folder / "made"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(str(json.loads(line)["run"]) for line in lines)


def until(is_true: Callable[[], object]) -> None:
    """Return when it is true. AssertionError if it does not become so in time."""
    deadline = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.1)


def is_ready(engine: SiteEngine) -> bool:
    """Whether the engine has made the namespace, or has it."""
    from temporalio.service import RPCError, RPCStatusCode

    from zsnapdb.base.errors import UnreachableError

    try:
        engine.make_namespace()
    except RPCError as error:
        return error.status is RPCStatusCode.ALREADY_EXISTS
    except UnreachableError:
        return False
    return True


@pytest.fixture
def guest(lab: Lab) -> Iterator[Guest]:
    with Guest.boot(lab, "mysql") as booted:
        yield booted


def test_an_engine_whose_database_is_restored_goes_on_and_no_run_is_done_twice(guest: Guest, tmp_path: Path) -> None:
    guest.run([PYTHON, "-c", ACCOUNT]).check()
    database = MySQL(relay.to_guest(guest, 3306), "engine", "secret-of-a-test")
    began = time.monotonic()
    site_engine.make_schemas(database)
    print(f"schemas: {time.monotonic() - began:.0f} s")
    engine = SiteEngine(tmp_path, site_engine.free_port(), database)
    fleet, runs = StoredFleet(engine), [run_context.new_run_id() for _ in range(4)]
    jobs = trial_engine.jobs_file(tmp_path, engine.port)
    with ExitStack() as stack:
        with engine.running() as process:
            until(lambda: is_ready(engine))
            control = ("-m", "zsnapdb", "fleet", "control", "--jobs", str(jobs))
            host = ("-m", "tests.unit.support.fleet_host", str(tmp_path), str(engine.port), "db1", "a", "backup", "4")
            for log, words in (("control.log", control), ("db1.log", host)):
                stack.callback(trial_engine.end, trial_engine.python(*words, log=tmp_path / log))
            fleet.begin("quick", runs[0])
            assert fleet.exit_code(runs[0]) == 0
            print(f"first job done: {time.monotonic() - began:.0f} s")
            fleet.begin("holds-one", runs[1])
            until(lambda: fleet.made()[runs[1]])
            guest.run(["zsnapdb", "backup"]).check()
            # What the engine knows from here on is lost; what hosts did is not.
            fleet.begin("other", runs[2])
            assert fleet.exit_code(runs[2]) == 0
            (tmp_path / "go").touch()
            assert fleet.exit_code(runs[1]) == 0
            process.kill()
            process.wait()
        guest.run(["/checkout/tests/lab/inside/server", "kill"]).check()
        restore = ["restore", "main", "--to", "latest-backup", "--as", "engine", "--handover", "run", "--port", "3310"]
        guest.run([QUICK, *restore]).check()
        restored = replace(engine, database=replace(database, port=relay.to_guest(guest, 3310)))
        began = time.monotonic()
        with restored.running():
            until(lambda: is_ready(restored))
            # Control and the worker are the same processes as before.
            assert fleet.exit_code(runs[1]) == 0
            print(f"the job that was at work at the backup has ended again: {time.monotonic() - began:.0f} s")
            fleet.begin("other", runs[2])
            assert fleet.exit_code(runs[2]) == 0
            fleet.begin("quick", runs[3])
            assert fleet.exit_code(runs[3]) == 0
        assert fleet.made() == Counter(runs)
