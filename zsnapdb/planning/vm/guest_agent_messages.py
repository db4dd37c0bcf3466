"""Builds the commands to the guest agent, and parses its answers. Pure.

The guest is untrusted, so the format of each answer is checked. The commands are defined by QEMU's guest agent (QEMU
Guest Agent Protocol Reference, guest-fsfreeze-*). While file systems are frozen, the agent accepts status and thaw, but
no command that could write to them.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import is_line
from zsnapdb.base.untrusted_text import fields_of

STATUS = '{"execute": "guest-fsfreeze-status"}'
FREEZE = '{"execute": "guest-fsfreeze-freeze"}'
THAW = '{"execute": "guest-fsfreeze-thaw"}'
INTERFACES = '{"execute": "guest-network-get-interfaces"}'
FILE_SYSTEMS = '{"execute": "guest-get-fsinfo"}'
_LONGEST_ANSWER = 1 << 20
_LONGEST_LISTING = 64
_LONGEST_PATH = 255


def _returned(answer: str, longest: int = _LONGEST_ANSWER, about: str = "") -> Any:
    try:
        document = fields_of(answer) if len(answer) <= longest else {}
    except ValueError as error:
        raise _strange(about) from error
    if "return" not in document:
        raise _strange(about)
    return document["return"]


def _strange(about: str = "") -> DamagedError:
    return DamagedError(f"the guest agent gave an answer {about}that cannot be read", hint="update qemu-guest-agent")


def is_frozen(answer: str) -> bool:
    """Return whether the guest's file systems are frozen, according to the agent's answer to STATUS.

    Raises DamagedError for an unexpected answer.
    """
    state = _returned(answer)
    if state not in ("frozen", "thawed"):
        raise _strange()
    return bool(state == "frozen")


def count(answer: str) -> int:
    """Return the number of frozen or thawed file systems in the answer.

    Raises DamagedError for an unexpected answer.
    """
    number = _returned(answer)
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise _strange()
    return number


def mount_points(answer: str) -> tuple[str, ...]:
    """Return the mount points that the agent lists, sorted. The result has at most 64 entries and no malformed ones."""
    listed = _returned(answer)
    names = [item.get("mountpoint") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    good = {name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_PATH and is_line(name)}
    return tuple(sorted(good)[:_LONGEST_LISTING])


def addresses(answer: str) -> tuple[str, ...]:
    """Return the IP addresses that the agent lists, sorted. The result has at most 64 entries and no malformed ones."""
    listed = _returned(answer)
    interfaces = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    entries = [entry for item in interfaces for entry in _list(item.get("ip-addresses")) if isinstance(entry, dict)]
    good = {text for entry in entries if isinstance(text := entry.get("ip-address"), str) and _is_address(text)}
    return tuple(sorted(good)[:_LONGEST_LISTING])


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_address(text: str) -> bool:
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


_LONGEST_OUTPUT = 1 << 22
_PROGRAM = "about a program "
_LARGEST_NUMBER = 1 << 63


@dataclass(frozen=True)
class GuestProgramEnd:
    """The end of a program in a guest: its exit code (None if a signal ended it) and its output."""

    code: int | None
    out: str
    err: str

    @property
    def is_good(self) -> bool:
        """Whether the program ended with exit code 0."""
        return self.code == 0


def start(argv: Sequence[str], text: str) -> str:
    """Return the command that starts a program and passes the text to its stdin.

    Arguments and text must not contain secrets.
    """
    arguments = {
        "path": argv[0],
        "arg": list(argv[1:]),
        "input-data": base64.b64encode(text.encode()).decode(),
        "capture-output": True,
    }
    return json.dumps({"execute": "guest-exec", "arguments": arguments})


def started(answer: str) -> int:
    """Return the process number in the answer to `start`. Raises DamagedError for an unexpected answer."""
    return _number(_exec_answer(answer), "pid")


def status(number: int) -> str:
    """Return the command that asks whether the process has ended."""
    return json.dumps({"execute": "guest-exec-status", "arguments": {"pid": number}})


def parse_end(answer: str) -> GuestProgramEnd | None:
    """Return the end of the process, as reported in the answer to `status`; None if the process is still running.

    Raises DamagedError for an unexpected answer, or if the agent left out a part of the output.
    """
    fields = _exec_answer(answer)
    if fields.get("exited") is False:
        return None
    if fields.get("exited") is not True or fields.get("out-truncated") or fields.get("err-truncated"):
        raise _strange(_PROGRAM)
    code = _number(fields, "exitcode") if "exitcode" in fields else None
    return GuestProgramEnd(code, _output(fields, "out-data"), _output(fields, "err-data"))


def _exec_answer(answer: str) -> dict[str, Any]:
    fields = _returned(answer, _LONGEST_OUTPUT, _PROGRAM)
    if not isinstance(fields, dict):
        raise _strange(_PROGRAM)
    return fields


def _number(fields: dict[str, Any], name: str) -> int:
    number = fields.get(name)
    if type(number) is not int or not 0 <= number < _LARGEST_NUMBER:
        raise _strange(_PROGRAM)
    return number


def _output(fields: dict[str, Any], name: str) -> str:
    encoded = fields.get(name, "")
    if not isinstance(encoded, str):
        raise _strange(_PROGRAM)
    try:
        return base64.b64decode(encoded, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError) as error:
        raise _strange(_PROGRAM) from error
