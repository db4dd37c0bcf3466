"""Runs zsnapdb, and notes the parts of its lock: `timed.py FILE WORD…`.

FILE gets a JSON object: how many milliseconds the server took for the statements of the lock, and how long the request
for snapshots took. What a lock lasts beyond them is zsnapdb's own. The bare snapshot of another moment has another
transaction group to write.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zsnapdb.cli.app import main
from zsnapdb.mysql import locks
from zsnapdb.zfs import libzfs

NOTES = Path(sys.argv.pop(1))
parts = {"statements_ms": 0.0, "request_ms": 0.0}


def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which adds its time to the part."""

    def run(*words: Any, **options: Any) -> Any:
        began = time.monotonic()
        try:
            return call(*words, **options)
        finally:
            parts[part] += (time.monotonic() - began) * 1000

    return run


libzfs.Core.snapshot = timed("request_ms", libzfs.Core.snapshot)  # type: ignore[method-assign]
locks._acquire = timed("statements_ms", locks._acquire)
locks._release = timed("statements_ms", locks._release)
try:
    main()
finally:
    NOTES.write_text(json.dumps(parts))
