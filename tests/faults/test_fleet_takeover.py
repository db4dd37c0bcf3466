"""A drill of a fleet outlives its host: two guests with systemd serve one engine, and one of them dies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.lab import relay
from tests.lab.guest import SYSTEMD, Guest, Lab, Running
from tests.unit.support import trial_engine
from zsnapdb.config.services import EngineSettings

from .in_guest import CONFIG, QUICK

pytestmark = [
    pytest.mark.skipif(trial_engine.temporal() is None, reason="the program temporal is not here"),
    # tests/unit/fleet/test_engine.py kills workers of the same engine, whose commands are fakes.
    pytest.mark.seldom,
]
PORT = 7233
UNIT = "zsnapdb-fleet-worker"
GOAL = 30.0
"""How many seconds after the death of its host a drill has begun on another one, at most."""
PATIENCE = 400.0
T = TypeVar("T")


@dataclass(frozen=True)
class Attempt:
    """An attempt of a run that is at work: its number, its host, and when the engine gave it to that (Unix time)."""

    number: int
    host: str
    began: float


@dataclass(frozen=True)
class Site:
    """An engine with control on this machine, and guests with workers, by the names of their hosts."""

    port: int
    jobs: Path
    guests: dict[str, Guest]

    def fleet(self, *words: str) -> list[dict[str, Any]]:
        """Return the runs that `zsnapdb fleet` tells of."""
        command = [sys.executable, "-m", "zsnapdb", "fleet", *words, "--jobs", str(self.jobs), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=trial_engine.environment())
        runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
        return runs

    def at_work(self, run: str) -> Attempt | None:
        """Return which attempt of the run is at work; None if none is. The engine says so."""
        from temporalio.api.enums.v1 import PendingActivityState

        from zsnapdb.fleet.connection import connect

        async def described() -> Any:
            client = await connect(EngineSettings(server=f"127.0.0.1:{self.port}"), "a test")
            return (await client.get_workflow_handle(run).describe()).raw_description

        for one in asyncio.run(described()).pending_activities:
            if one.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                host = one.last_worker_identity.partition("/")[0]
                return Attempt(one.attempt, host, one.last_started_time.ToNanoseconds() / 1e9)
        return None

    def drill(self) -> tuple[str, str]:
        """Begin a drill. Return its workflow and its host when that has begun to restore."""
        workflow = str(self.fleet("run", "drill", "--all")[0]["id"])
        host = until(lambda: self.at_work(workflow)).host
        until(lambda: self.has_scratch(host))
        return workflow, host

    def has_scratch(self, host: str) -> bool:
        """Whether a host has a part of what a drill restores."""
        return "/scratch/main/drill/" in self.guests[host].run(["zfs", "list", "-H", "-o", "name"]).check().stdout

    def drills(self, host: str) -> bool:
        """Whether the command of a drill is at work on the host."""
        return self.guests[host].run(["pgrep", "-f", "zsnapdb drill"]).code == 0

    def taken_over(self, workflow: str, died: float) -> str:
        """Return the host that does the drill instead, in time, when it has passed there."""

        def next_attempt() -> Attempt | None:
            seen = self.at_work(workflow)
            return seen if seen is not None and seen.number > 1 else None

        # It may have begun long before this look at it.
        second = until(next_attempt)
        host, seconds = second.host, second.began - died
        print(f"the drill was given to {host} {seconds:.1f} s after the death of its host")
        assert seconds < GOAL
        until(lambda: self.fleet("history")[0]["state"] != "running")
        last = self.fleet("history")[0]
        assert (last["id"], last["state"], last["host"]) == (workflow, "completed", host), last
        print(f"it had passed {time.time() - died:.1f} s after that death")
        drills = json.loads(self.guests[host].run([QUICK, "drills", "--json"]).check().stdout)["drills"]
        assert [one["run_id"] for one in drills].count(workflow.rpartition("/")[2]) == 1
        return host


def until(ask: Callable[[], T | None]) -> T:
    """Return the answer when it is true. AssertionError if it does not become so in time."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := ask()):
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.1)
    return answer


def serve(guest: Guest, host: str, port: int) -> None:
    """Make the guest a host of the fleet, whose engine answers on the port of this machine."""
    relay.to_host(guest, PORT, port)
    lines = f'[fleet]\\nserver = "127.0.0.1:{PORT}"\\nhost = "{host}"\\ndrills = true\\nmemory = "64MiB"\\n'
    # Each host drills the same instance in test after test, sooner than a site would.
    lines += 'spacing = "0s"\\n'
    guest.run(["sh", "-ec", f"printf '{lines}' >> {CONFIG}"]).check()
    guest.run(["cp", f"/checkout/configs/systemd/{UNIT}.service", "/run/systemd/system/"]).check()
    guest.run(["systemctl", "daemon-reload"]).check()
    work(guest)


def work(guest: Guest) -> None:
    """Start the worker; afterwards it takes jobs."""
    said = ["journalctl", "--no-pager", "--output=cat", f"--unit={UNIT}"]
    before = guest.run(said).check().stdout.count("takes jobs of")
    guest.run(["systemctl", "start", UNIT]).check()
    until(lambda: guest.run(said).check().stdout.count("takes jobs of") > before)


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, port = tmp_path_factory.mktemp("fleet"), trial_engine.free_port()
    with ExitStack() as stack:
        first = stack.enter_context(Guest.boot(lab, "mariadb", init=SYSTEMD))
        # Its server is another one. What is drilled lies in the repository of the first.
        second = stack.enter_context(Guest.boot(lab, "mariadb", init=SYSTEMD, bucket=first.bucket))
        first.run([QUICK, "backup"]).check()
        stack.enter_context(trial_engine.engine(folder, port))
        jobs = trial_engine.jobs_file(folder, port, '[instance.main]\nhost = "db-1"\n')
        words = ("-m", "zsnapdb", "fleet", "control", "--jobs", str(jobs))
        stack.callback(trial_engine.end, trial_engine.python(*words, log=folder / "control.log"))
        guests = {"db-1": first, "db-2": second}
        for host, guest in guests.items():
            serve(guest, host, port)
        yield Site(port, jobs, guests)


def test_a_drill_whose_worker_and_command_are_killed_is_done_by_another_host(site: Site) -> None:
    workflow, host = site.drill()
    guest, died = site.guests[host], time.time()
    guest.run(["systemctl", "kill", "--kill-whom=all", "--signal=KILL", UNIT]).check()
    # systemd would start it again, and then either may be given the drill.
    guest.run(["systemctl", "stop", UNIT]).check()
    assert not site.drills(host)
    assert site.taken_over(workflow, died) != host
    # What the killed one left is removed by the host itself, with its next drill.
    guest.run([QUICK, "drill", "main"]).check()
    assert not site.has_scratch(host)
    work(guest)


def test_a_drill_whose_worker_is_killed_alone_is_undone_there_and_done_by_another_host(site: Site) -> None:
    """Outside systemd nobody ends the command of a worker that was killed; the kernel tells it."""
    workers: dict[str, Running] = {}

    def begin(host: str) -> None:
        worker = workers[host] = site.guests[host].spawn(["zsnapdb", "fleet", "worker"])
        until(lambda: "takes jobs of" in worker.output(2))

    for host, guest in site.guests.items():
        guest.run(["systemctl", "stop", UNIT]).check()
        begin(host)
    workflow, host = site.drill()
    died = time.time()
    site.guests[host].run(["pkill", "-KILL", "-f", "zsnapdb fleet worker"]).check()
    until(lambda: not site.drills(host))
    print(f"its command had ended {time.time() - died:.1f} s later")
    assert not site.has_scratch(host)
    assert site.taken_over(workflow, died) != host
    begin(host)


def test_a_drill_whose_host_loses_its_power_is_done_by_another_host(site: Site) -> None:
    workflow, host = site.drill()
    died = time.time()
    site.guests[host].power_cut()
    assert site.taken_over(workflow, died) != host
