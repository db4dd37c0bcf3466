"""The ledger in the server of a machine: setup, load, check.

- `set-up SOCKET` creates the tables.
- `load ADDRESS STOP FILE` makes transfers until the file STOP exists, and writes the acknowledged ones to FILE.
- `check ADDRESS [FILE]` prints the numbers of transfers. It fails if the sum of all balances changed, a worker's
  journal has a gap, a balance does not match the journal, or a transfer in FILE is missing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, "/checkout")

from tests.lab.inside import ledger


def load(address: str, stop: Path, file: Path) -> int:
    running = ledger.Load(address, workers=2, rate=5.0)
    running.start()
    while not stop.exists() and not running.failures:
        time.sleep(0.2)
        keep(file, running.committed)
    running.stop()
    keep(file, running.committed)
    print(running.failures or "stopped")
    return 1 if running.failures else 0


def keep(file: Path, committed: dict[int, int]) -> None:
    """Write the acknowledged transfers atomically."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(dict(committed)))
    os.replace(new, file)


def check(address: str, file: Path | None) -> int:
    """Compare the ledger with its own journal, and with the acknowledged transfers."""
    with ledger.connect(address) as connection:
        state = ledger.read_state(connection)
    known = json.loads(file.read_text()) if file is not None else {}
    acknowledged = {(int(worker), number) for worker, last in known.items() for number in range(1, last + 1)}
    checks = ledger.compare(address, state, state.journal, state.ballast)[:2]
    wrong = [item.name + ": " + item.detail for item in checks if not item.ok]
    if state.accounts != ledger.balances(state.journal):
        wrong.append("a balance is not the one that the journal makes")
    if not acknowledged <= state.journal:
        wrong.append(f"{len(acknowledged - state.journal)} acknowledged transfers are missing")
    print(json.dumps({"transfers": len(state.journal), "acknowledged": len(acknowledged), "wrong": wrong}))
    return 1 if wrong else 0


def main(verb: str, address: str, *files: str) -> int:
    if verb == "set-up":
        ledger.set_up(address, ballast_rows=0)
        return 0
    if verb == "load":
        return load(address, Path(files[0]), Path(files[1]))
    return check(address, Path(files[0]) if files else None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
