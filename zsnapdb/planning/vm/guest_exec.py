"""Programs in a guest: the commands to its agent that run them, and the agent's answers. Pure.

The guest writes the answers, so each is read by its form. The commands are guest-exec and guest-exec-status (QEMU Guest
Agent Protocol Reference). The agent keeps at most 16 MiB of a program's output, and says if there was more.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.foreign_text import fields_of

_LONGEST_OUTPUT = 1 << 22
_LARGEST_NUMBER = 1 << 63


@dataclass(frozen=True)
class GuestProgramEnd:
    """How a program in a guest ended, and what it printed. `code` None: a signal ended it."""

    code: int | None
    out: str
    err: str

    @property
    def is_good(self) -> bool:
        """Whether it ended with status 0."""
        return self.code == 0


def start(argv: Sequence[str], text: str) -> str:
    """Return the command that starts a program with the text as its stdin. No secret belongs in either."""
    arguments = {
        "path": argv[0],
        "arg": list(argv[1:]),
        "input-data": base64.b64encode(text.encode()).decode(),
        "capture-output": True,
    }
    return json.dumps({"execute": "guest-exec", "arguments": arguments})


def started(answer: str) -> int:
    """Return the number of the process, from the answer to `start`. DamagedError for a strange answer."""
    return _number(_exec_answer(answer), "pid")


def status(number: int) -> str:
    """Return the question whether the process has ended."""
    return json.dumps({"execute": "guest-exec-status", "arguments": {"pid": number}})


def ended(answer: str) -> GuestProgramEnd | None:
    """Return how the process ended, from the answer to `status`; None while it runs.

    DamagedError for a strange answer, and if the agent left a part of the output out.
    """
    fields = _exec_answer(answer)
    if fields.get("exited") is False:
        return None
    if fields.get("exited") is not True or fields.get("out-truncated") or fields.get("err-truncated"):
        raise _strange_exec()
    code = _number(fields, "exitcode") if "exitcode" in fields else None
    return GuestProgramEnd(code, _output(fields, "out-data"), _output(fields, "err-data"))


def _exec_answer(answer: str) -> dict[str, Any]:
    if len(answer) > _LONGEST_OUTPUT:
        raise _strange_exec()
    try:
        fields = fields_of(answer).get("return")
    except ValueError as error:
        raise _strange_exec() from error
    if not isinstance(fields, dict):
        raise _strange_exec()
    return fields


def _number(fields: dict[str, Any], name: str) -> int:
    number = fields.get(name)
    if type(number) is not int or not 0 <= number < _LARGEST_NUMBER:
        raise _strange_exec()
    return number


def _output(fields: dict[str, Any], name: str) -> str:
    encoded = fields.get(name, "")
    if not isinstance(encoded, str):
        raise _strange_exec()
    try:
        return base64.b64decode(encoded, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise _strange_exec() from error


def _strange_exec() -> DamagedError:
    return DamagedError(
        "the guest agent gave an answer about a program that cannot be read", hint="update qemu-guest-agent"
    )
