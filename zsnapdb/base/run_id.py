"""The id of a run of a command: the same in its log, its snapshots, its backup, its evidence and its notifications."""

from __future__ import annotations

import functools
import os
import re
import secrets
from datetime import UTC, datetime

VARIABLE = "ZSNAPDB_RUN_ID"
"""The environment variable by which whoever starts a run, such as the agent, gives it its id."""
PATTERN = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"


def new() -> str:
    """Return a new id: the time (UTC) and a random part."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def is_one(text: str) -> bool:
    """Whether the text has the form of an id of a run."""
    return re.fullmatch(PATTERN, text) is not None


def time_of(text: str) -> datetime:
    """Return the time (UTC) in an id of a run; the end of all times if it names none that exists."""
    try:
        return datetime.strptime(text[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


def adopt(given: str) -> None:
    """Make `given`, which has the form of an id, the id of this process's run and of the programs that it starts."""
    os.environ[VARIABLE] = given
    current.cache_clear()


@functools.cache
def current() -> str:
    """Return the id of this process's run: that of the environment if it has the form of one, else a new one."""
    given = os.environ.get(VARIABLE, "")
    return given if is_one(given) else new()
