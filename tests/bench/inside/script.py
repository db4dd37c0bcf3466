"""The usual script: global read lock, `zfs snapshot`, unlock. One connection, no deadline. `script.py SNAPSHOT…`."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pymysql

SOCKET = "/run/mysqld/mysqld.sock"


def main() -> None:
    """Make the snapshots under the lock and print how long the script waited for the lock and held it."""
    # The account that zsnapdb has: it may take the lock.
    connection = pymysql.connect(unix_socket=SOCKET, user="zsnapdb", password="lab-zsnapdb")
    began = time.monotonic()
    connection.query("FLUSH TABLES WITH READ LOCK")
    subprocess.run(["zfs", "snapshot", *sys.argv[1:]], check=True)
    connection.query("UNLOCK TABLES")
    print(json.dumps({"held_ms": (time.monotonic() - began) * 1000}))


main()
