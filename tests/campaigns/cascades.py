"""Campaign: row events of MySQL after which foreign keys are followed once more, or not.

It runs inside a guest (`python3 tests/lab campaign cascades`, MySQL only). In each round, random statements change
tables with foreign keys, in some rounds in compressed transactions. Then the binlog is applied to empty tables: as it
is, and as zsnapdb changes relay logs. The changed binlog must give exactly the rows of the source in every round. The
binlog as it is must fail in some round; otherwise the campaign shows nothing, or the server does not need the change.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pymysql

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.inside import ledger
from tests.system import cascades
from zsnapdb.mysql.binlog import foreign_keys
from zsnapdb.mysql.binlog.transactions import transactions

SOCKET = "/run/mysqld/mysqld.sock"
TOOLS = Path("/opt/mysql/bin")
COPY = Path("/tmp/cascades.binlog")


def empty(cursor: Any) -> None:
    for statement in ("DROP DATABASE IF EXISTS kin", "RESET BINARY LOGS AND GTIDS"):
        cursor.execute(statement)


def written(cursor: Any, seed: int, count: int) -> tuple[bytes, dict[str, Any]]:
    """Return the binlog of a round, and the rows after it."""
    empty(cursor)
    cursor.execute("CREATE DATABASE kin")
    cursor.execute("USE kin")
    for statement in (cascades.SCHEMA + (";" + cascades.TRIGGERS if seed % 3 else "")).split(";"):
        cursor.execute(statement)
    cursor.execute(f"SET SESSION binlog_transaction_compression = {'ON' if seed % 2 else 'OFF'}")
    cursor.execute(f"SET SESSION binlog_row_image = {('FULL', 'MINIMAL', 'NOBLOB')[seed % 3]}")
    with contextlib.suppress(pymysql.Error):
        cursor.execute(f"SET SESSION enable_cascade_triggers = {'ON' if seed % 4 > 1 else 'OFF'}")
    for statement in cascades.statements(seed, count):
        with contextlib.suppress(pymysql.Error):
            cursor.execute(statement)
    expected = cascades.rows(cursor)
    cursor.execute("SELECT @@log_bin_basename")
    ((base,),) = cursor.fetchall()
    cursor.execute("FLUSH BINARY LOGS")
    return Path(f"{base}.000001").read_bytes(), expected


def changed(binlog: bytes) -> bytes:
    """Return the binlog as a replay changes it."""
    out, file = io.BytesIO(), io.BytesIO(binlog)
    places = [one.start for one in transactions(io.BytesIO(binlog), "binlog")]
    moved = foreign_keys.write_changed(file, "binlog", 4, places, lambda: out)
    if moved is None:
        return binlog
    result = out.getvalue()
    assert [one.start for one in transactions(io.BytesIO(result), "changed")] == [moved[place] for place in places]
    return result


def applied(cursor: Any, binlog: bytes) -> tuple[dict[str, Any], str]:
    """Apply a binlog to the empty server; return the rows, and the error."""
    empty(cursor)
    COPY.write_bytes(binlog)
    tool = subprocess.Popen(
        [TOOLS / "mysqlbinlog", "--no-defaults", "--verify-binlog-checksum", COPY], stdout=subprocess.PIPE
    )
    client: list[str | Path] = [TOOLS / "mysql", "--no-defaults", "--binary-mode", "-uroot", f"-S{SOCKET}"]
    done = subprocess.run(client, stdin=tool.stdout, capture_output=True, text=True, timeout=300, check=False)
    tool.wait(timeout=60)
    cursor.execute("USE kin")
    return cascades.rows(cursor), done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--statements", type=int, default=90)
    options = parser.parse_args()
    began, wrong, needed, differs = time.monotonic(), [], 0, 0
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        ((version,),) = cursor.fetchall()
        if "MariaDB" in version:
            print("MariaDB's row events say nothing about foreign keys: nothing is changed")
            return 0
        for seed in range(options.seed, options.seed + options.rounds):
            binlog, expected = written(cursor, seed, options.statements)
            relayed = changed(binlog)
            needed += relayed != binlog
            differs += applied(cursor, binlog) != (expected, "")
            result = applied(cursor, relayed)
            if result != (expected, ""):
                wrong.append(seed)
                print(f"seed {seed}: {result} instead of {expected}", flush=True)
    figures = {"server": version, "rounds": options.rounds, "changed": needed, "wrong_unchanged": differs}
    document = {**figures, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}
    Path("/out/campaign.json").write_text(json.dumps(document))
    print(json.dumps(document))
    return 1 if wrong or not differs else 0


if __name__ == "__main__":
    sys.exit(main())
