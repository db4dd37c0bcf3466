"""Measures in a guest how fast zsnapdb (relay logs) and the server's own tool (into a client) replay binlogs.

`replay.py MEBIBYTES`. Both begin at the same backup and replay the same binlogs with the same options; the results are
compared. Writes /out/bench.json.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pymysql

from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.mysql.replication import replay as replaying

SOCKET = "/run/mysqld/mysqld.sock"
PARENT = Path("/var/lib/mysql")
SCHEMAS = 4
ROWS = 12
WORKERS = 4
FLAVOUR = Flavour(Path("/etc/lab-flavour").read_text().strip())
TOOL = "/opt/mysql/bin/mysqlbinlog" if FLAVOUR is Flavour.MYSQL else "/usr/bin/mariadb-binlog"
CLIENT = "/opt/mysql/bin/mysql" if FLAVOUR is Flavour.MYSQL else "/usr/bin/mariadb"
SERVER = "/opt/mysql/bin/mysqld" if FLAVOUR is Flavour.MYSQL else "/usr/sbin/mariadbd"


def sql(statement: str, socket: str = SOCKET) -> list[tuple[Any, ...]]:
    with ledger.connect(socket, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def zsnapdb(*words: str) -> dict[str, Any]:
    done = subprocess.run(["zsnapdb", *words, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def written() -> int:
    return sum(path.stat().st_size for path in PARENT.glob("binlog.0*"))


def write(schema: int, until: int, seed: int) -> None:
    """Write transactions of a dozen rows (inserts, updates, deletes) until the binlogs have so many bytes."""
    noise = random.Random(seed)
    with ledger.connect(SOCKET, "root", "", f"bench_{schema}") as connection, connection.cursor() as cursor:
        number = seed * 100_000_000
        while written() < until:
            for _ in range(25):
                cursor.execute("BEGIN")
                rows = [(number + n, noise.randrange(1000), noise.randbytes(150).hex()) for n in range(ROWS)]
                cursor.executemany("INSERT INTO t VALUES (%s, %s, %s)", rows)
                cursor.execute("UPDATE t SET k = k + 1 WHERE id = %s", (number,))
                cursor.execute("DELETE FROM t WHERE id = %s", (number + 1,))
                cursor.execute("COMMIT")
                number += ROWS


def checksum(socket: str) -> list[Any]:
    return [
        sql(f"SELECT COUNT(*), SUM(id), SUM(k), SUM(CRC32(body)) FROM bench_{n}.t", socket)[0] for n in range(SCHEMAS)
    ]


def start(option_file: str, extra: tuple[str, ...], socket: str) -> subprocess.Popen[bytes]:
    lines = Path(option_file).read_text()
    Path("/tmp/bench.cnf").write_text(lines + "\n".join(extra) + "\n")
    process = subprocess.Popen(
        [SERVER, "--defaults-file=/tmp/bench.cnf"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while True:
        try:
            ledger.connect(socket, "root", "", None).close()
            return process
        except (pymysql.MySQLError, OSError):
            if process.poll() is not None:
                raise RuntimeError("the server did not start") from None
            time.sleep(0.1)


def pipe(files: list[str], start_at: int, socket: str) -> float:
    """Replay with the server's own tool into one client session; return the seconds it took."""
    began = time.monotonic()
    source = subprocess.Popen([TOOL, f"--start-position={start_at}", *files], stdout=subprocess.PIPE)
    sink = subprocess.run([CLIENT, "-uroot", f"--socket={socket}", "--binary-mode"], stdin=source.stdout, check=False)
    if (source.wait(), sink.returncode) != (0, 0):
        raise RuntimeError("the pipe failed")
    return time.monotonic() - began


def main() -> None:
    size = int(sys.argv[1]) << 20
    for n in range(SCHEMAS):
        sql(f"CREATE DATABASE bench_{n}")
        sql(f"CREATE TABLE bench_{n}.t (id BIGINT PRIMARY KEY, k INT, body VARCHAR(400), KEY (k))")
    sql("SET GLOBAL sync_binlog = 0")
    sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    backup = zsnapdb("backup")["backup"]
    until = written() + size
    workers = [threading.Thread(target=write, args=(n % SCHEMAS, until, n + 1)) for n in range(WORKERS)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    sql("FLUSH BINARY LOGS")
    truth = checksum(SOCKET)
    zsnapdb("binlog", "archive", "main", "--once")
    names = [Path(line).name for line in (PARENT / "binlog.index").read_text().split()]
    names = names[names.index(backup["position"]["binlog_file"]) : -1]
    count = 0
    for name in names:
        with (PARENT / name).open("rb") as file:
            count += sum(
                1
                for transaction in transactions(file, name)
                if name != names[0] or transaction.start >= backup["position"]["binlog_offset"]
            )
    kept = Path("/srv/binlogs")
    kept.mkdir()
    for name in names:
        subprocess.run(["cp", str(PARENT / name), str(kept / name)], check=True)
    subprocess.run(["/checkout/tests/lab/inside/server", "stop"], check=True)
    results: dict[str, Any] = {
        "transactions": count,
        "bytes": sum((kept / n).stat().st_size for n in names) - backup["position"]["binlog_offset"],
    }
    ours = zsnapdb("restore", "main", "--to", "latest", "--target", "tank/ours")
    results["replay_step_seconds"] = sum(
        seconds for step, seconds in ours["seconds"].items() if step.startswith("replay")
    )
    process = start(ours["option_file"], (), f"{ours['mount']}/.zsnapdb/server.sock")
    wrong = [] if checksum(f"{ours['mount']}/.zsnapdb/server.sock") == truth else ["relay logs"]
    process.terminate()
    process.wait()
    for label, options in (("pipe_same_options", replaying.options(FLAVOUR, 4)), ("pipe", ())):
        base = zsnapdb("restore", "main", "--to", backup["backup_id"], "--target", f"tank/{label.replace('_', '-')}")
        socket = f"{base['mount']}/.zsnapdb/server.sock"
        began = time.monotonic()
        process = start(base["option_file"], options, socket)
        results[f"{label}_seconds"] = pipe([str(kept / n) for n in names], backup["position"]["binlog_offset"], socket)
        if checksum(socket) != truth:
            wrong.append(label)
        process.send_signal(signal.SIGTERM)
        process.wait()
        results[f"{label}_whole_seconds"] = time.monotonic() - began
    results["wrong"] = wrong
    Path("/out/bench.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results), file=sys.stderr)
    os._exit(0)


if __name__ == "__main__":
    main()
