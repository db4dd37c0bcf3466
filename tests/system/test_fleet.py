"""A fleet of one machine has the real backup and the real drill of its instance done, and no run is done twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import trial_engine

from .in_guest import CONFIG, Lab

pytestmark = pytest.mark.any_server

PATIENCE = 900.0


@dataclass(frozen=True)
class Trial:
    """`zsnapdb fleet dev` on the guest."""

    lab: Lab
    jobs: Path
    said: Path

    def fleet(self, *words: str) -> dict[str, Any]:
        """Return the document of `zsnapdb fleet`."""
        return self.lab.zsnapdb("fleet", *words, "--jobs", str(self.jobs), "--json").json


@pytest.fixture(scope="module")
def trial(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    if trial_engine.temporal() is None:
        pytest.skip("the guest has no program temporal")
    folder = tmp_path_factory.mktemp("fleet")
    said, words = folder / "said", ("fleet", "dev", "--folder", str(folder), "--config", str(CONFIG))
    with said.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "zsnapdb", *words], stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + PATIENCE
        while "works" not in said.read_text():
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
        yield Trial(lab, folder / "fleet-jobs.toml", said)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    # It ended its engine too.
    assert process.returncode == 0, said.read_text()


# The engine takes minutes to start in a guest; tests/unit/fleet/test_engine.py has a real one and fakes of commands.
@pytest.mark.seldom
def test_the_fleet_has_a_backup_made_and_a_drill_done_and_neither_is_done_twice(lab: Lab, trial: Trial) -> None:
    (backed_up,) = trial.fleet("run", "backup", "--all", "--wait")["runs"]
    assert (backed_up["state"], backed_up["instance"]) == ("completed", "main"), trial.said.read_text()
    run = backed_up["id"].rpartition("/")[2]
    made = lab.zsnapdb("list", "--json").json["backups"]
    again = lab.zsnapdb("backup", "main", "--once", run, "--json").json["backup"]
    assert [again["backup_id"]] == [one["backup_id"] for one in made][-1:]
    assert len(lab.zsnapdb("list", "--json").json["backups"]) == len(made)
    # Any host may do a drill; here is one.
    (drilled,) = trial.fleet("run", "drill", "--all", "--wait")["runs"]
    assert drilled["state"] == "completed", trial.said.read_text()
    assert lab.zsnapdb("drills", "--json").json["drills"][-1]["run_id"] == drilled["id"].rpartition("/")[2]
    assert [one["verb"] for one in trial.fleet("history")["runs"]] == ["drill", "backup"]
