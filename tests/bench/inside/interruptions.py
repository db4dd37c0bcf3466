"""Kills backups and restores at random moments in a guest, and measures how many bytes are transferred twice.

`interruptions.py MEBIBYTES KILLS CHUNK_MEBIBYTES`. Writes /out/bench.json.

The store is reached over the loopback interface alone, so the interface counts all transferred bytes.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.inside.restore import SOCKET, fill
from tests.lab.inside import ledger
from zsnapdb.config.repository import StreamSettings

CONFIG = "/etc/zsnapdb/zsnapdb.toml"
RATE_MIB = 16
"""MiB per second at which the commands transfer, so that a transfer is long beside the start of a command."""
TARGET = "tank/again"
STATE = "SELECT COUNT(*), SUM(CRC32(body)) FROM bench.t"


@dataclass(frozen=True)
class Killed:
    """One command that was killed again and again.

    `whole` is the number of bytes that it transfers without interruption, and `transferred` the number of all its runs.
    `useless` counts the runs that were killed before they transferred a chunk.
    """

    whole: int
    transferred: int
    kills: int
    useless: int
    seconds: float


def transferred() -> int:
    """Return the bytes that the loopback interface has transferred since its start."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)
    return int(line.split()[1])


def run(*words: str) -> dict[str, Any]:
    """Run a command of zsnapdb to its end, and return its document."""
    done = subprocess.run(["zsnapdb", *words, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def killed(
    first: Sequence[str], again: Sequence[str], last: Sequence[str], whole: int, kills: int, chunk: int
) -> tuple[Killed, dict[str, Any]]:
    """Kill `first`, then `again`, at random moments while they transfer, and let `last` end. Return its document."""
    chance = random.Random(7)
    began, before, useless = time.monotonic(), transferred(), 0
    for number in range(kills):
        start = transferred()
        process = subprocess.Popen(
            ["zsnapdb", *(again if number else first), "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        # A restore can be continued once it has begun to transfer.
        stop = chance.uniform(0.0 if number else 2.0 * chunk, 2.0 * whole / kills)
        limit = time.monotonic() + 60
        while transferred() - start < stop and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        if process.poll() is not None:
            assert process.stderr is not None
            raise RuntimeError(f"{again} ended before kill {number}: {process.stderr.read().decode()}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        useless += transferred() - start < chunk
    document = run(*last)
    return Killed(whole, transferred() - before, kills, useless, time.monotonic() - began), document


def state(socket: str) -> str:
    with ledger.connect(socket, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute(STATE)
        return str(cursor.fetchall())


def destroy(mount: str) -> None:
    """End the server of the restore, and remove the restore."""
    with ledger.connect(f"{mount}/.zsnapdb/server.sock", "root", "", None) as connection:
        connection.cursor().execute("SHUTDOWN")
    for _ in range(120):
        if subprocess.run(["zfs", "destroy", "-r", TARGET], capture_output=True).returncode == 0:
            return
        time.sleep(1)
    raise RuntimeError(f"{TARGET} stays busy")


def main() -> None:
    mebibytes, kills, chunk = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    lines = f'stream.chunk_size = "{chunk}MiB"\nbandwidth = "{RATE_MIB}MiB"'
    text = Path(CONFIG).read_text()
    Path(CONFIG).write_text(text.replace("[repository.s3]\n", f"[repository.s3]\n{lines}\n", 1))
    fill(mebibytes)
    before = transferred()
    run("backup", "--full")
    whole = transferred() - before
    once = ["backup", "--full", "--once", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-0123abcd"]
    backup, made = killed(once, once, once, whole, kills, chunk << 20)
    backup_id = made["backup"]["backup_id"]
    if not made["backup"]["full"] or not made["backup"]["plain_bytes"]:
        raise RuntimeError(f"not the full backup that was begun: {made['backup']}")
    restore = ["restore", "main", "--to", backup_id, "--target", TARGET, "--handover", "run"]
    before = transferred()
    restored = run(*restore)
    whole = transferred() - before
    exact = state(SOCKET)
    results = [state(f"{restored['mount']}/.zsnapdb/server.sock") == exact]
    destroy(restored["mount"])
    resume = ["restore", "main", "--resume", "--target", TARGET]
    interrupted, restored = killed(restore, resume, resume, whole, kills, chunk << 20)
    results.append(state(f"{restored['mount']}/.zsnapdb/server.sock") == exact)
    measured = {"backup": asdict(backup), "restore": asdict(interrupted), "exact": results}
    document = {**measured, "usual_chunk": StreamSettings().chunk_size}
    Path("/out/bench.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
