"""The bare snapshot, without the start of a process: `bare.py SNAPSHOT…`.

Loads the library and prints a line; makes the snapshots on a line of input and prints how many milliseconds the call
took. That is the least that a lock can last.
"""

from __future__ import annotations

import json
import sys
import time

from zsnapdb.zfs import libzfs


def main() -> None:
    """Get ready, wait, make the snapshots, report."""
    library = libzfs.load()
    if library is None:
        raise SystemExit("libzfs_core cannot be loaded")
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    library.snapshot(sys.argv[1:], {"zsnapdb:bench": "bare"})
    print(json.dumps({"held_ms": (time.monotonic() - began) * 1000}), flush=True)


main()
