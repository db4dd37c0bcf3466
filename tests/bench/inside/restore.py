"""Measures in a guest how long a whole restore and each of its steps take.

For comparison: `zfs receive` from a file, from a file that `zstd` decompresses, and mysqld's own recovery.
`restore.py MEBIBYTES ROUNDS`. Writes /out/bench.json.

Who had the guest's processor meanwhile is in each sample: the S3 server, which runs in the same guest, the command with
all programs that it started, and the rest, which is the kernel with the threads of ZFS.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.lab.inside import ledger

SOCKET = "/run/mysqld/mysqld.sock"
FLAVOUR = Path("/etc/lab-flavour").read_text().strip()
SERVER = "/opt/mysql/bin/mysqld" if FLAVOUR == "mysql" else "/usr/sbin/mariadbd"
ROW = 8000
ORIGINAL_ROWS = 2**30 // ROW
COPIED_ROWS = 2**27 // ROW
"""Rows that one transaction copies."""
VOLUMES = ("", "/data")
PROPERTIES = "recordsize,compression,atime,xattr,primarycache,logbias,sync,redundant_metadata,checksum,dnodesize"
"""What a volume must have again, also by hand. What the server then writes has these properties, which takes longer."""


STREAM = "/srv/s3/stream{}"


class Processor:
    """Who uses the processors of the guest from now on, in seconds."""

    def __init__(self) -> None:
        self.began = self._now()

    def used(self) -> dict[str, float]:
        """Return the processor seconds since then by user; those in which nobody had one are "idle"."""
        return {name: round(now - self.began[name], 3) for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        ticks = os.sysconf("SC_CLK_TCK")
        # proc(5): user, nice, system, idle, iowait, irq, softirq.
        fields = [int(word) / ticks for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        command = children.ru_utime + children.ru_stime + own.ru_utime + own.ru_stime
        store = self._of_process(Path("/run/s3.pid").read_text().strip(), ticks)
        busy = sum(fields) - fields[3] - fields[4]
        return {"command": command, "store": store, "kernel": busy - command - store, "idle": fields[3] + fields[4]}

    @staticmethod
    def _of_process(pid: str, ticks: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks


def run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{argv}: {done.stderr}")
    return done.stdout


def fill(mebibytes: int) -> None:
    """Insert that many bytes into tables; half of each row compresses. What exceeds 1 GiB are copies."""
    noise = random.Random(1)
    rows = mebibytes * 2**20 // ROW
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("CREATE TABLE bench.t (id INT PRIMARY KEY AUTO_INCREMENT, body VARBINARY(8000))")
        made = 0
        while made < min(rows, ORIGINAL_ROWS):
            cursor.executemany(
                "INSERT INTO bench.t (body) VALUES (%s)",
                [(noise.randbytes(ROW // 4) + bytes(ROW // 2),) for _ in range(100)],
            )
            made += 100
        while made < rows:
            made += cursor.execute("INSERT INTO bench.t (body) SELECT body FROM bench.t LIMIT %s", (COPIED_ROWS,))
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def destroy(top: str) -> None:
    for volume in reversed(VOLUMES):
        for name in run("zfs", "list", "-H", "-d", "1", "-t", "snapshot", "-o", "name", top + volume).split():
            run("zfs", "destroy", name)
        run("zfs", "destroy", top + volume)


def start_and_stop(option_file: str, socket: str) -> tuple[float, float]:
    """Start the server, wait until it answers, shut it down; return the seconds to its answer, and to its end."""
    began = time.monotonic()
    process = subprocess.Popen(
        [SERVER, f"--defaults-file={option_file}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while True:
        try:
            ledger.connect(socket, "root", "", None).close()
            answered = time.monotonic() - began
            break
        except (pymysql.MySQLError, OSError):
            if process.poll() is not None:
                raise RuntimeError("the server did not start") from None
            time.sleep(0.05)
    process.terminate()
    process.wait()
    return answered, time.monotonic() - began


def running(backup_id: str) -> float:
    """Restore to a server that runs beside the old one; return the seconds to its first answer."""
    began = time.monotonic()
    words = ("restore", "main", "--to", backup_id, "--target", "tank/ours", "--handover", "run", "--json")
    restored = json.loads(run("zsnapdb", *words))
    ledger.connect(f"{restored['mount']}/.zsnapdb/server.sock", "root", "", None).close()
    answered = time.monotonic() - began
    run("kill", str(restored["pid"]))
    while Path(f"/proc/{restored['pid']}").exists():
        time.sleep(0.1)
    destroy("tank/ours")
    return answered


def by_hand(option_file: str) -> dict[str, Any]:
    """Receive the same streams from files, set properties, mount, let the server recover and shut down.

    Return the seconds of each part.
    """
    began, processor = time.monotonic(), Processor()
    for index, volume in enumerate(VOLUMES):
        options = ["-o", f"mountpoint=/mnt/hand{volume}", "-o", "canmount=noauto"]
        with open(STREAM.format(index), "rb") as file:
            subprocess.run(["zfs", "receive", "-u", *options, f"tank/hand{volume}"], stdin=file, check=True)
    for volume in VOLUMES:
        values = run("zfs", "get", "-H", "-p", "-o", "property,value", PROPERTIES, f"tank/mysql{volume}").splitlines()
        run("zfs", "set", *[value.replace("\t", "=") for value in values], f"tank/hand{volume}")
        run("zfs", "mount", f"tank/hand{volume}")
    received, used = time.monotonic(), processor.used()
    lines = Path(option_file).read_text()
    top = str(Path(option_file).parents[1])
    for path in Path("/mnt/hand").glob("*.index"):
        path.write_text(path.read_text().replace("/var/lib/mysql", "/mnt/hand"))
    folder = Path("/mnt/hand/.zsnapdb")
    run("install", "-d", "-o", "mysql", "-g", "mysql", "-m", "700", str(folder), str(folder / "tmp"))
    Path("/tmp/hand.cnf").write_text(lines.replace(top, "/mnt/hand"))
    answered, recovered = start_and_stop("/tmp/hand.cnf", "/mnt/hand/.zsnapdb/server.sock")
    whole = processor.used()
    destroy("tank/hand")
    receive = received - began
    seconds = {"receive": receive, "recover": recovered, "whole": receive + recovered}
    return {**seconds, "first answer": receive + answered, "processor": used, "processor whole": whole}


def decompressed() -> dict[str, Any]:
    """Receive the same streams from files that `zstd` decompresses. Return the seconds."""
    began, processor = time.monotonic(), Processor()
    for index, volume in enumerate(VOLUMES):
        words = ["zstd", "-q", "-d", "-c", f"{STREAM.format(index)}.zst"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as plain:
            subprocess.run(["zfs", "receive", "-u", f"tank/hand{volume}"], stdin=plain.stdout, check=True)
    seconds, used = time.monotonic() - began, processor.used()
    destroy("tank/hand")
    return {"receive": seconds, "processor": used}


def main() -> None:
    mebibytes, rounds = int(sys.argv[1]), int(sys.argv[2])
    fill(mebibytes)
    backup: dict[str, Any] = json.loads(run("zsnapdb", "backup", "--json"))["backup"]
    for index, volume in enumerate(VOLUMES):
        with open(STREAM.format(index), "wb") as file:
            subprocess.run(
                ["zfs", "send", "-L", f"tank/mysql{volume}@zsnapdb-{backup['backup_id']}"], stdout=file, check=True
            )
        run("zstd", "-q", "-f", "-3", STREAM.format(index))
    run("/checkout/tests/lab/inside/server", "stop")
    samples: list[dict[str, Any]] = []
    for _ in range(rounds):
        began, processor = time.monotonic(), Processor()
        restored = json.loads(
            run("zsnapdb", "restore", "main", "--to", backup["backup_id"], "--target", "tank/ours", "--json")
        )
        whole, used = time.monotonic() - began, processor.used()
        option_file = Path("/tmp/ours.cnf")
        option_file.write_text(Path(restored["option_file"]).read_text())
        top = restored["mount"]
        destroy("tank/ours")
        link = Path("/tmp/option") / ".zsnapdb"
        link.mkdir(parents=True, exist_ok=True)
        (link / "server.cnf").write_text(option_file.read_text().replace(top, "/tmp/option"))
        samples.append(
            {
                "ours": {**restored["seconds"], "whole": whole},
                "processor": used,
                "hand": by_hand(str(link / "server.cnf")),
                "decompressed": decompressed(),
                "first answer": running(backup["backup_id"]),
            }
        )
    results = {
        "stream_bytes": sum(v["plain_bytes"] for v in backup["volumes"]),
        "stored_bytes": sum(v["stored_bytes"] for v in backup["volumes"]),
        "samples": samples,
    }
    Path("/out/bench.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
