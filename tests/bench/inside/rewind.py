"""Measures in a guest how long a server needs to be back before an accident, by zsnapdb and by a DBA's script.

`rewind.py MEBIBYTES TRANSACTIONS…` writes /out/bench.json. For each number of transactions: a snapshot set, so many
transactions, an accident. Then `zsnapdb rewind` to right before it; and once more with `zfs rollback` and the output of
the server's binlog tool, piped into the client. Both end when the server answers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.bench.inside.restore import FLAVOUR, SOCKET, fill, run
from tests.lab.inside import ledger

SERVER = "/checkout/tests/lab/inside/server"
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
OPTIONS = Path("/etc/lab.cnf")
TOOL, CLIENT = (
    ("/opt/mysql/bin/mysqlbinlog", "/opt/mysql/bin/mysql")
    if FLAVOUR == "mysql"
    else ("/usr/bin/mariadb-binlog", "/usr/bin/mariadb")
)
VOLUMES = ("tank/mysql", "tank/mysql/data")
STATUS = "SHOW BINARY LOG STATUS" if FLAVOUR == "mysql" else "SHOW MASTER STATUS"


def sql(*statements: str) -> list[tuple[Any, ...]]:
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def configure() -> None:
    """Say how the server is stopped and started, and where MariaDB's new server_id goes."""
    folder = Path("/etc/lab.d")
    folder.mkdir()
    OPTIONS.write_text(f"{OPTIONS.read_text()}\n!includedir {folder}\n")
    lines = [
        CONFIG.read_text(),
        "[instance.main.control]",
        f'stop = ["{SERVER}", "stop"]',
        f'start = ["{SERVER}", "start"]',
        f'server_id_file = "{folder}/zsnapdb.cnf"',
    ]
    CONFIG.write_text("\n".join(lines) + "\n")
    run(SERVER, "stop")
    run(SERVER, "start")


def write(transactions: int) -> None:
    """Commit so many small transactions, by ten sessions in turn."""
    sessions = [ledger.connect(SOCKET, "root", "", None) for _ in range(10)]
    for number in range(transactions):
        with sessions[number % 10].cursor() as cursor:
            cursor.execute("INSERT INTO bench.small (body) VALUES (%s)", (f"transaction {number}",))
    for session in sessions:
        session.close()


def accident(transactions: int) -> tuple[str, int, tuple[Any, ...]]:
    """Write, then delete every row. Return the name of the binlog and the offset before the accident, and the truth."""
    write(transactions)
    truth = sql("SELECT COUNT(*), COALESCE(SUM(id), 0) FROM bench.small")[0]
    file, offset = sql(STATUS)[0][:2]
    sql("DELETE FROM bench.small")
    return file, int(offset), truth


def settled(truth: tuple[Any, ...]) -> None:
    if sql("SELECT COUNT(*), COALESCE(SUM(id), 0) FROM bench.small")[0] != truth:
        raise RuntimeError("the server does not have the rows that it had before the accident")


def by_zsnapdb(transactions: int) -> dict[str, float]:
    run("zsnapdb", "snapshot", "main")
    _, _, truth = accident(transactions)
    words = ("binlog", "find", "main", "--json", "--table", "bench.small", "--kind", "delete", "--limit", "1")
    (entry,) = json.loads(run("zsnapdb", *words))["transactions"]
    began = time.monotonic()
    done = json.loads(
        run("zsnapdb", "rewind", "main", "--to", f"before-{entry['gtid']}", "--yes", "--no-backup", "--json")
    )
    whole = time.monotonic() - began
    settled(truth)
    if done["binlogs_from"]["archive"] or done["volumes_from"] != "host":
        raise RuntimeError("something was fetched")
    return {"whole": whole, "outage": done["outage_seconds"], "prepare": done["prepare_seconds"]}


def by_script(transactions: int) -> dict[str, float]:
    """Do what a DBA does by hand. The binlogs are copied first: the rollback takes them away."""
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        cursor.execute(STATUS)
        row = cursor.fetchone()
        assert row is not None
        first, start = row[:2]
        run("zfs", "snapshot", *(f"{volume}@script" for volume in VOLUMES))
    file, stop, truth = accident(transactions)
    began = time.monotonic()
    kept = Path("/tmp/binlogs")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir()
    names = sorted(path.name for path in Path("/var/lib/mysql").glob("binlog.0*") if first <= path.name <= file)
    for name in names:
        shutil.copy(Path("/var/lib/mysql") / name, kept / name)
    run(SERVER, "stop")
    stopped = time.monotonic()
    for volume in VOLUMES:
        run("zfs", "rollback", "-r", f"{volume}@script")
    run(SERVER, "start")
    if transactions:
        # MySQL's server must accept the GTIDs that the output sets: they are those of the old history.
        argv = [TOOL, f"--start-position={start}", f"--stop-position={stop}", *(str(kept / name) for name in names)]
        source = subprocess.Popen(argv, stdout=subprocess.PIPE)
        subprocess.run([CLIENT, f"--socket={SOCKET}", "--user=root", "--binary-mode"], stdin=source.stdout, check=True)
        if source.wait() != 0:
            raise RuntimeError("the binlog tool failed")
    ended = time.monotonic()
    settled(truth)
    for volume in VOLUMES:
        run("zfs", "destroy", f"{volume}@script")
    return {"whole": ended - began, "outage": ended - stopped}


def own_start() -> float:
    """Return the seconds of the server's own start after a clean stop."""
    run(SERVER, "stop")
    began = time.monotonic()
    run(SERVER, "start")
    seconds = time.monotonic() - began
    while True:
        try:
            sql("SELECT 1")
            return seconds
        except pymysql.MySQLError:
            time.sleep(0.05)


def main() -> None:
    mebibytes, numbers = int(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    configure()
    fill(mebibytes)
    sql("CREATE TABLE bench.small (id INT PRIMARY KEY AUTO_INCREMENT, body VARCHAR(100))")
    # The accident without transactions before it needs rows too: a server writes no event for a deletion of none.
    write(10)
    samples: dict[str, Any] = {"start": min(own_start() for _ in range(3))}
    for number in numbers:
        samples[f"script_{number}"] = by_script(number)
        samples[f"zsnapdb_{number}"] = by_zsnapdb(number)
    Path("/out/bench.json").write_text(json.dumps(samples, indent=1) + "\n")


if __name__ == "__main__":
    main()
