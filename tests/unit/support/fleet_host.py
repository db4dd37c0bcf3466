"""A fleet worker whose commands are those of `fake_job.py`: `python -m tests.unit.support.fleet_host …`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from zsnapdb.agent.children import ProcessChild, StartChild, emptied
from zsnapdb.config.settings import Settings
from zsnapdb.fleet import worker
from zsnapdb.fleet.host_job import JobRunner

FAKE = Path(__file__).with_name("fake_job.py")
HOLDING = tuple(f"holds-{number}" for number in range(16))
FAILING = tuple(f"fails-{code}-one" for code in (4, 6, 12, 75))
INSTANCES = ("quick", "other", "slow-one", "holds-one", *FAILING, *HOLDING)


def settings(folder: Path, port: int, host: str, **fleet: object) -> Settings:
    """Return the configuration of a host of the fleet, whose agent keeps its records in the folder."""
    own = {"server": f"127.0.0.1:{port}", "host": host, "drills": True, "memory": 0, "spacing": 0, **fleet}
    instances = {name: {"repository": "here"} for name in INSTANCES}
    return Settings.model_validate(
        {
            "instance": instances,
            "repository": {"here": {"url": f"file://{folder}/repository"}},
            "agent": {"state": folder / host},
            "fleet": own,
        }
    )


def starter(folder: Path, host: str) -> StartChild:
    """Return a function that starts the fake in place of `zsnapdb`."""

    def start(words: Sequence[str], log: Path, run_id: str) -> ProcessChild:
        with emptied(log) as out:
            command = [sys.executable, "-S", "-E", str(FAKE), str(folder), host, *words]
            return ProcessChild(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT), log)

    return start


def runner(folder: Path, port: int, host: str, **fleet: object) -> JobRunner:
    """Return a job runner of such a host."""
    own = settings(folder, port, host, **fleet)
    return JobRunner(host, lambda: own, starter(folder, host), {}, lambda: datetime.now(UTC), lambda: 1 << 40, print)


def main() -> None:
    """Serve: FOLDER PORT HOST MACHINE VERBS (with commas) AT-ONCE [CA CERTIFICATE KEY SERVER-NAME]."""
    folder, port, host, machine, verbs, at_once, *tls = sys.argv[1:]
    shown = dict(zip(("ca", "certificate", "key", "server_name"), tls, strict=False))
    more = {"drills": "drill" in verbs, "at_once": int(at_once), **shown}
    made = runner(Path(folder), int(port), host, verbs=tuple(verbs.split(",")), **more)
    own = made.load().fleet
    assert own is not None
    with mock.patch.object(worker, "machine", return_value=machine):
        worker.serve(own, made, lambda text: print(text, flush=True), lambda: None)


if __name__ == "__main__":
    main()
