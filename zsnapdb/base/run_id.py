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


@functools.cache
def current() -> str:
    """Return the id of this process's run: that of the environment if it has the form of one, else a new one."""
    given = os.environ.get(VARIABLE, "")
    return given if re.fullmatch(PATTERN, given) else new()
