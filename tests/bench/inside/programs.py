"""In the guest: how many programs each command starts, and which of them it starts twice with the same words.

`programs.py` writes /out/programs.json, with the transaction groups of the pool that each command forced.
`programs.py --run LOG WORDS…` is `zsnapdb WORDS…`, which writes each program that Python starts in it to LOG (an audit
event, "subprocess.Popen").
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOG = Path("/tmp/programs.log")
GROUPS = Path("/proc/spl/kstat/zfs/tank/txgs")
"""The newest transaction groups of the pool, one in a line that begins with its number."""
TIMEOUT = Path("/sys/module/zfs/parameters/zfs_txg_timeout")
"""After so many seconds a group ends by itself (zfs(4))."""
Command = tuple[str, tuple[str, ...]]
PREPARED: tuple[tuple[str, ...], ...] = (("backup", "main"), ("clone", "create", "main", "--name", "warm"))
"""What is there before: a backup, and a clone."""
MEASURED: tuple[Command, ...] = (
    ("backup of nothing", ("backup", "main")),
    ("snapshot", ("snapshot", "main")),
    ("status", ("status", "main")),
    ("list", ("list", "main")),
    ("clone create", ("clone", "create", "main", "--name", "own")),
    ("clone list", ("clone", "list")),
    ("clone reset by rows", ("clone", "reset", "own")),
    ("clone reset", ("clone", "reset", "own", "--replace")),
    ("clone destroy", ("clone", "destroy", "own")),
    ("query", ("query", "main", "SELECT 1")),
    ("drill", ("drill", "main")),
    ("restore", ("restore", "main", "--to", "latest-backup", "--target", "tank/beside")),
    ("doctor", ("doctor", "main")),
)


def trace(log: str, words: list[str]) -> None:
    """Run zsnapdb with the words, and write the programs that it starts."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(event: str, arguments: Any) -> None:
        if event == "subprocess.Popen":
            line = json.dumps({"at": time.monotonic(), "argv": [str(word) for word in arguments[1]]})
            os.write(written, line.encode() + b"\n")

    sys.addaudithook(note)
    sys.argv = ["zsnapdb", *words]
    from zsnapdb.cli.app import main

    main()


def newest_group() -> int:
    """Return the number of the open transaction group of the pool."""
    return max(int(line.split()[0]) for line in GROUPS.read_text().splitlines()[2:])


def measured(words: tuple[str, ...]) -> dict[str, Any]:
    """Run a command, and return its programs, its wall time, and the processor seconds of it and its children."""
    LOG.unlink(missing_ok=True)
    group = newest_group()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    argv = [sys.executable, __file__, "--run", str(LOG), *words, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    programs = [json.loads(line) for line in LOG.read_text().splitlines()] if LOG.exists() else []
    # status and doctor say by 1 that they warn, and by 2 that something is wrong.
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    groups = newest_group() - group
    return {"wall": wall, "processor": processor, "programs": programs, "began": began, "groups": groups}


def main() -> None:
    """Measure each command once after another, and write it."""
    from tests.campaigns.support.faults import add_innochecksum

    add_innochecksum()
    TIMEOUT.write_text("600")
    for words in PREPARED:
        subprocess.run(["zsnapdb", *words], check=True, capture_output=True)
    result = {name: measured(words) for name, words in MEASURED}
    Path("/out/programs.json").write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        trace(sys.argv[2], sys.argv[3:])
    else:
        main()
