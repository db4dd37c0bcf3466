"""Commits one row as fast as it can and notes when each commit was acknowledged: `probe.py FILE`.

A process of its own, so that no other Python thread delays it. FILE gets one double (time.monotonic, which all
processes of a host share) per commit, unbuffered, so that it can be read while the probe runs. Ends with SIGTERM.
"""

from __future__ import annotations

import gc
import os
import struct
import sys
import time

import pymysql

SOCKET = "/run/mysqld/mysqld.sock"
TABLE = "stall_probe"
STAMP = struct.Struct("d")


def main() -> None:
    """Make the table, then commit until killed."""
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    # No time limit: this program measures how long a commit waits.
    connection = pymysql.connect(unix_socket=SOCKET, user="app", password="lab-app", database="ledger", autocommit=True)
    connection.query(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=InnoDB")
    connection.query(f"INSERT INTO {TABLE} VALUES (1, 0)")
    update = f"UPDATE {TABLE} SET n = n + 1 WHERE id = 1"
    gc.disable()
    while True:
        connection.query(update)
        os.write(file, STAMP.pack(time.monotonic()))


main()
