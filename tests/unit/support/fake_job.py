"""A fake of `zsnapdb VERB INSTANCE --json [--once RUN]` as its own process: `fake_job.py FOLDER HOST WORDS…`.

In FOLDER it writes a line for each start and end (`calls`), and for each created object (`made`): a run creates at most
one. The instance's name controls it: `slow-…` runs until it is ended, `fails-N-…` exits with N, `holds-…` waits after
the creation for a file `go`, all others take a moment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER, HOST, WORDS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


def note(file: str, **what: object) -> None:
    """Append a line in one write."""
    with (FOLDER / file).open("a") as opened:
        opened.write(json.dumps({"host": HOST, "pid": os.getpid(), "words": WORDS, "at": time.time(), **what}) + "\n")


def undo(_number: int, _frame: object) -> None:
    """End like a command that undoes its steps."""
    note("calls", what="undone")
    sys.exit(130)


def main() -> int:
    """Act by the instance's name, and return the exit code."""
    signal.signal(signal.SIGTERM, undo)
    note("calls", what="begin")
    instance = WORDS[1]
    run = WORDS[WORDS.index("--once") + 1] if "--once" in WORDS else ""
    print(json.dumps({"event": "progress", "step": "sending", "done": 1, "total": 2}), flush=True)
    if instance.startswith("slow"):
        while not (FOLDER / f"end-{instance}").exists():
            time.sleep(0.05)
    if instance.startswith("fails"):
        secret = os.environ.get("STORE_PASSWORD", "")
        error = {"code": "preflight", "message": f"the pool has no room, {secret}", "hint": ""}
        print(json.dumps({"version": 1, "kind": "error", "error": error, "exit_code": 4}), flush=True)
        return int(instance.split("-")[1])
    made = (FOLDER / "made").read_text() if (FOLDER / "made").exists() else ""
    if not run or run not in made:
        time.sleep(0.1)
        note("made", run=run)
    while instance.startswith("holds") and not (FOLDER / "go").exists():
        time.sleep(0.02)
    note("calls", what="end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
