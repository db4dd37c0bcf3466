"""The id of a run, shared by its log, snapshots, backup, evidence and notifications."""

from __future__ import annotations

import functools
import os
import re
import secrets
from datetime import UTC, datetime

VARIABLE = "ZSNAPDB_RUN_ID"
"""Environment variable by which the starter of a run, such as the agent, passes the id."""
PATTERN = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"


def new() -> str:
    """Return a new id: the time (UTC) and a random part."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def is_one(text: str) -> bool:
    """Whether the text has the form of a run id."""
    return re.fullmatch(PATTERN, text) is not None


def time_of(text: str) -> datetime:
    """Return the time (UTC) in a run id; datetime.max if it is not a valid time."""
    try:
        return datetime.strptime(text[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


def adopt(given: str) -> None:
    """Set the run id of this process and of the programs that it starts. `given` is a valid id."""
    os.environ[VARIABLE] = given
    current.cache_clear()


@functools.cache
def current() -> str:
    """Return the run id of this process: that of the environment if valid, else a new one."""
    given = os.environ.get(VARIABLE, "")
    return given if is_one(given) else new()
