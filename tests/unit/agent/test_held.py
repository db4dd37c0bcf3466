"""No job begins of an instance whose files are being moved, while its server is down; of others they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.support.moving_host import MovingHost, moving_host
from zsnapdb.agent.supervisor import suspended_instances
from zsnapdb.config.settings import parse
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.steps.move_state import MoveRecord
from zsnapdb.planning.setup.move import MovePhase

CONFIGURATION = """
[restore]
journal = "{folder}/restores"
[instance.main]
socket = "/s"
repository = "here"
[instance.other]
socket = "/another"
repository = "here"
[repository.here]
url = "file:///nowhere"
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MovingHost:
    return moving_host(tmp_path, monkeypatch)


def test_a_move_that_left_its_server_down_holds_the_jobs_of_its_instance_back(host: MovingHost, tmp_path: Path) -> None:
    settings = parse(CONFIGURATION.format(folder=tmp_path), "test")
    assert suspended_instances(settings) == {}
    move_state.journal().parent.mkdir(parents=True, exist_ok=True)
    move_state.write(MoveRecord(host.move(), MovePhase.COPIED))
    assert suspended_instances(settings) == {}, "the server runs on its old files"
    host.runs_on = ""
    held = suspended_instances(settings)
    assert list(held) == ["main"]
    assert "run the same `zsnapdb setup` command again" in held["main"]
    move_state.journal().write_text("{")
    assert suspended_instances(settings) == {}, "nothing is held back by what cannot be read"
