"""Programs in a guest: what its agent is told, and what it answers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from zsnapdb.base.errors import DamagedError
from zsnapdb.planning.vm import guest_agent_messages
from zsnapdb.planning.vm.guest_agent_messages import GuestProgramEnd


def answer(**fields: Any) -> str:
    return json.dumps({"return": fields})


def test_a_program_is_started_by_its_words_with_its_text_as_stdin_and_never_through_a_shell() -> None:
    command = json.loads(guest_agent_messages.start(("mariadb", "--batch"), "SELECT 'ö';\n"))
    assert command["execute"] == "guest-exec"
    arguments = command["arguments"]
    assert (arguments["path"], arguments["arg"], arguments["capture-output"]) == ("mariadb", ["--batch"], True)
    assert base64.b64decode(arguments["input-data"]).decode() == "SELECT 'ö';\n"
    assert guest_agent_messages.started(answer(pid=7)) == 7
    assert json.loads(guest_agent_messages.status(7))["arguments"] == {"pid": 7}


def test_a_program_runs_or_has_ended_with_its_status_and_output() -> None:
    assert guest_agent_messages.parse_end(answer(exited=False)) is None
    out = base64.b64encode(b"1\n\xff").decode()
    assert guest_agent_messages.parse_end(
        answer(**{"exited": True, "exitcode": 1, "out-data": out})
    ) == GuestProgramEnd(1, "1\n\ufffd", "")
    killed = guest_agent_messages.parse_end(answer(exited=True, signal=9))
    assert killed is not None
    assert not killed.is_good


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"error": {}}',
        '{"return": 7}',
        answer(),
        answer(exited=1),
        answer(exited=True, exitcode=-1),
        answer(exited=True, exitcode=True),
        answer(**{"exited": True, "out-data": "no base64"}),
        answer(**{"exited": True, "out-data": 7}),
        answer(**{"exited": True, "out-truncated": True}),
        answer(**{"exited": True, "out-data": "A" * (1 << 22)}),
    ],
)
def test_strange_answers_are_refused(text: str) -> None:
    with pytest.raises(DamagedError, match="cannot be read"):
        guest_agent_messages.parse_end(text)
    with pytest.raises(DamagedError, match="cannot be read"):
        guest_agent_messages.started(text)
