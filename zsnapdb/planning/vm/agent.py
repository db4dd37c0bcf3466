"""The questions to the guest agent, and its answers. Pure.

The guest writes the answers, so each is read by its form. The commands are those of QEMU's guest agent (QEMU Guest
Agent Protocol Reference, guest-fsfreeze-*). While file systems are frozen the agent answers status and thaw, and no
command that could write to them.
"""

from __future__ import annotations

from typing import Any

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.foreign_text import fields_of
from zsnapdb.base.patterns import is_line

STATUS = '{"execute": "guest-fsfreeze-status"}'
FREEZE = '{"execute": "guest-fsfreeze-freeze"}'
THAW = '{"execute": "guest-fsfreeze-thaw"}'
FILE_SYSTEMS = '{"execute": "guest-get-fsinfo"}'
_LONGEST_ANSWER = 1 << 20
_LONGEST_LISTING = 64
_LONGEST_PATH = 255


def _returned(answer: str) -> Any:
    if len(answer) > _LONGEST_ANSWER:
        raise _strange()
    try:
        document = fields_of(answer)
    except ValueError as error:
        raise _strange() from error
    if "return" not in document:
        raise _strange()
    return document["return"]


def _strange() -> DamagedError:
    return DamagedError("the guest agent gave an answer that cannot be read", hint="update qemu-guest-agent")


def is_frozen(answer: str) -> bool:
    """Whether the file systems are frozen, from the answer to STATUS. DamagedError for a strange answer."""
    state = _returned(answer)
    if state not in ("frozen", "thawed"):
        raise _strange()
    return bool(state == "frozen")


def count(answer: str) -> int:
    """Return how many file systems were frozen or thawed, from the answer. DamagedError for a strange answer."""
    number = _returned(answer)
    if type(number) is not int or not 0 <= number < 1 << 31:
        raise _strange()
    return number


def mount_points(answer: str) -> tuple[str, ...]:
    """Return the mount points that the agent lists, sorted, at most 64. Strange ones are left out."""
    listed = _returned(answer)
    names = [item.get("mountpoint") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    good = {name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_PATH and is_line(name)}
    return tuple(sorted(good)[:_LONGEST_LISTING])
