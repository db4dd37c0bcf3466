"""Completes the commands in messages with the instance of the running command, so that they work as printed.

A command without an instance works only if a single instance is configured.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

NEED_INSTANCE = frozenset(
    (
        *("backup", "snapshot", "list", "show", "status", "restore", "retrieve", "rewind", "runbook", "rescue", "undo"),
        *("drill", "drills", "query", "diff", "migration-check", "verify", "copy", "consolidate", "prune", "pin"),
        *("adopt", "acknowledge-removed", "binlog archive", "binlog status", "binlog purge", "binlog find"),
        *("clone create", "clone prepare", "clone pool", "clone upgrade-test"),
        *("report show", "report records", "report verify"),
    )
)
"""The commands that act on one instance."""
_PRINTED = re.compile(r"(?<=`)zsnapdb ([a-z-]+(?: [a-z][a-z-]*)?)((?: [^`]*)?)(?=`)")
INSTANCE = r"[a-z0-9][a-z0-9_-]{0,47}"
"""The pattern of `base/patterns.py`, whose import takes longer than a help."""
_OF_ALL = ("--help", "--instances")
"""Options with which a command needs no instance."""


class _Running:
    """The instance that the user named for the command of this process; None if the user named none."""

    instance: str | None = None


def with_instance(text: str, instance: str) -> str:
    """Return the text with the instance in each printed command that needs an instance and has no argument."""

    def completed(found: re.Match[str]) -> str:
        words, rest = found[1], found[2]
        is_missing = words in NEED_INSTANCE and (not rest or rest.startswith(" -"))
        if not is_missing or any(option in rest.split() for option in _OF_ALL) or (words, rest) == ("status", " --all"):
            return found[0]
        return found[0].replace(words, f"{words} {instance}", 1)

    return _PRINTED.sub(completed, text)


def complete(text: str) -> str:
    """Return the text of a message with the instance of the running command, if the user named one."""
    return text if _Running.instance is None else with_instance(text, _Running.instance)


def naming_instance(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function of a command, wrapped so that its messages name its instance."""

    @functools.wraps(function)
    def run(**options: Any) -> None:
        named = options.get("instance")
        _Running.instance = named if isinstance(named, str) and re.fullmatch(INSTANCE, named) else None
        function(**options)

    return run
