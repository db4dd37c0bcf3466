"""Recording of fleet workflows on a real engine: `python -m tests.unit.support.fleet_histories`. It takes six minutes.

The histories in `tests/unit/fleet/histories` are replayed with the present code. Existing ones stay, because runs that
started under an older release continue under the next one.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.unit.support import trial_engine
from zsnapdb.base import run_context
from zsnapdb.config.fleet_jobs import WindowSettings
from zsnapdb.config.services import EngineSettings, FleetVerb
from zsnapdb.fleet.connection import connect
from zsnapdb.fleet.workflows import slots_id
from zsnapdb.planning.fleet.jobs import CONTROL, JOB, FleetJob

FOLDER = Path(__file__).parents[1] / "fleet" / "histories"
SECONDS = 400.0


def _jobs(now: datetime) -> dict[str, FleetJob]:
    """Return a job of each kind, by the name of its history."""
    bucket: dict[str, Any] = {"bucket": "small", "limit": 1}
    window = WindowSettings(start=f"{now - timedelta(hours=1):%H:%M}", end=f"{now + timedelta(minutes=1):%H:%M}")
    backup = {"verb": FleetVerb.BACKUP, "host": "db1", "heartbeat": 3}
    kinds: dict[str, dict[str, Any]] = {
        "job": {**backup, "instance": "quick"},
        "job-with-slot": {**backup, **bucket, "instance": "quick"},
        "job-after-window": {**backup, "instance": "other", "windows": (window,)},
        "job-that-fails": {**backup, **bucket, "instance": "fails-12-one"},
        "job-that-is-cancelled": {**backup, **bucket, "instance": "slow-one"},
        "job-that-nobody-takes": {**backup, **bucket, "instance": "quick", "host": "nobody", "timeout": 200},
        "job-that-no-host-can-do": {"verb": FleetVerb.DRILL, **bucket, "instance": "nowhere", "timeout": 100},
        "job-of-any-host": {"verb": FleetVerb.DRILL, "instance": "quick", "heartbeat": 3},
    }
    return {
        name: FleetJob.model_validate({**fields, "run_id": run_context.new_run_id()})
        for name, fields in kinds.items()
        if not _file(name).exists()
    }


def _file(name: str) -> Path:
    return FOLDER / f"{name}.json"


async def _record(port: int) -> dict[str, str]:
    client = await connect(EngineSettings(server=f"127.0.0.1:{port}"), "an operator")
    handles = {}
    for name, job in _jobs(datetime.now(UTC)).items():
        handles[name] = await client.start_workflow(JOB, job, id=name, task_queue=CONTROL)
        if name == "job-that-is-cancelled":
            await asyncio.sleep(20)
            await handles[name].cancel()
    await asyncio.wait_for(asyncio.gather(*(one.result() for one in handles.values()), return_exceptions=True), SECONDS)
    found = {name: (await one.fetch_history()).to_json() for name, one in handles.items()}
    if _file("slots").exists():
        return found
    slots = client.get_workflow_handle(slots_id("small"))
    first = (await slots.describe()).run_id
    for number in range(trial_engine.LONG):
        await slots.signal("acquire" if number % 2 else "release", f"gone-{number // 2}")
    await slots.signal("resize", 2)
    await asyncio.sleep(20)
    continued = client.get_workflow_handle(slots.id, run_id=first)
    return {**found, "slots": (await continued.fetch_history()).to_json()}


def main() -> None:
    port = trial_engine.free_port()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(trial_engine.engine(folder, port, trial_engine.CONTINUES_EARLY))
        words = ("fleet", "control", "--jobs", str(trial_engine.jobs_file(folder, port)))
        host = ("tests.unit.support.fleet_host", name, str(port), "db1", "a", "backup,drill", "4")
        for module, log in ((("zsnapdb", *words), "control.log"), (host, "host.log")):
            stack.callback(trial_engine.end, trial_engine.python("-m", *module, log=folder / log))
        time.sleep(5)
        found = asyncio.run(_record(port))
        print((folder / "control.log").read_text(), (folder / "host.log").read_text())
    FOLDER.mkdir(exist_ok=True)
    for kind, text in found.items():
        assert name not in text
        _file(kind).write_text(json.dumps(json.loads(text), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
