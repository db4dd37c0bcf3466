"""Runs zsnapdb, and notes how long its request for snapshots took: `timed.py FILE WORD…`.

Each request adds a line with its milliseconds. What a lock lasts beyond that is not ZFS's: the bare snapshot of another
moment has another transaction group to write.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from zsnapdb.cli.app import main
from zsnapdb.zfs import core

NOTES = Path(sys.argv.pop(1))
request = core.Core.snapshot


def timed(self: core.Core, names: Sequence[str], properties: Mapping[str, str]) -> None:
    """Make the snapshots and add the line."""
    began = time.monotonic()
    request(self, names, properties)
    ended = time.monotonic()
    with NOTES.open("a") as file:
        file.write(f"{(ended - began) * 1000}\n")


core.Core.snapshot = timed  # type: ignore[method-assign]
main()
