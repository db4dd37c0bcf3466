"""The guest's server in the campaign `histories`: it writes known rows, and its history is split."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import pymysql

from tests.campaigns.support.live_states import Entry, LiveStates, Rows
from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour

SOCKET = "/run/mysqld/mysqld.sock"
SERVER = "/checkout/tests/lab/inside/server"
PARENT = Path("/var/lib/mysql")
OPTIONS = Path("/etc/lab.cnf")
MARK = "administrator"


class Split(StrEnum):
    """How a history ends and another starts."""

    RESET = "reset"
    FAILOVER = "failover"
    FAILOVER_LOSS = "failover with loss"
    SET_BACK = "set back"
    RENAMED = "renamed binlogs"
    CLOCK = "clock set back"
    NO_GTIDS = "GTIDs off"


def splits_of(flavour: Flavour) -> list[Split]:
    """Return the possible splits of the flavour: MariaDB's GTIDs cannot be off."""
    return [split for split in Split if flavour is Flavour.MYSQL or split is not Split.NO_GTIDS]


@dataclass
class HistoryServer:
    """The server with all its past states. `chance` decides the writes."""

    flavour: Flavour
    chance: random.Random
    states: LiveStates = field(init=False)
    _number: int = 0
    _base: str = "binlog"
    _server_id: int = 1

    def __post_init__(self) -> None:
        self.states = LiveStates(self.flavour is Flavour.MARIADB)
        self.sql("CREATE DATABASE past", "CREATE TABLE past.numbers (number INT PRIMARY KEY)")
        self.states.split((), time.time(), time.time())

    @property
    def is_mysql(self) -> bool:
        return self.flavour is Flavour.MYSQL

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements as root and return the rows of the last one."""
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def value(self, statement: str) -> str:
        return str(self.sql(statement)[0][0])

    def position(self) -> tuple[str, int]:
        """Return the end of the active binlog."""
        (row,) = self.sql("SHOW BINARY LOG STATUS" if self.is_mysql else "SHOW MASTER STATUS")
        return str(row[0]), int(str(row[1]))

    def write(self, transactions: int) -> None:
        """Commit this many transactions, some within one second, with rotations between them."""
        with ledger.connect(SOCKET, "root", "", "past") as connection:
            for _ in range(transactions):
                self._commit(connection)
                if self.chance.random() < 0.5:
                    time.sleep(self.chance.uniform(0.2, 1.2))
                if self.chance.random() < 0.12:
                    connection.query("FLUSH BINARY LOGS")

    def _commit(self, connection: pymysql.Connection) -> None:
        self._number += 1
        low = time.time()
        connection.query(f"INSERT INTO numbers VALUES ({self._number})")
        high = time.time()
        file, end = self.position()
        rows = (*self.states.last.rows, self._number)
        self.states.commit(Entry(low, high, rows, self.states.last.epoch, self._newest_gtid(), file, end, True))

    def _newest_gtid(self) -> str | None:
        if not self.is_mysql:
            return self.value("SELECT @@GLOBAL.gtid_binlog_pos")
        if self.value("SELECT @@GLOBAL.gtid_mode") != "ON":
            return None
        uuid, executed = self.value("SELECT @@server_uuid"), self.value("SELECT @@GLOBAL.gtid_executed")
        numbers = re.search(rf"{uuid}:([\d:-]+)", executed)
        assert numbers is not None, executed
        return f"{uuid}:{re.split('[:-]', numbers.group(1))[-1]}"

    def rows(self) -> Rows:
        return tuple(int(str(row[0])) for row in self.sql("SELECT number FROM past.numbers ORDER BY number"))

    def start(self) -> None:
        subprocess.run([SERVER, "start"], check=True, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        subprocess.run([SERVER, self.chance.choice(("stop", "kill"))], check=True)

    def mark(self) -> tuple[Rows, tuple[str, int]]:
        """Create an administrator's snapshot, and return its rows and binlog position."""
        self.unmark()
        where = self.position()
        subprocess.run(["zfs", "snapshot", "-r", f"tank/mysql@{MARK}"], check=True)
        return self.states.last.rows, where

    def unmark(self) -> None:
        subprocess.run(["zfs", "destroy", "-r", f"tank/mysql@{MARK}"], check=False, stderr=subprocess.DEVNULL)

    def _back_to_mark(self) -> None:
        for dataset in ("tank/mysql/data", "tank/mysql"):
            subprocess.run(["zfs", "rollback", "-r", f"{dataset}@{MARK}"], check=True)

    def split(self, how: Split, marked: tuple[Rows, tuple[str, int]]) -> None:
        """End the history in this way and start the next one. `marked` is the result of the last `mark`."""
        low = time.time()
        rows = self.states.last.rows
        if how is Split.RESET:
            self.sql("RESET BINARY LOGS AND GTIDS" if self.is_mysql else "RESET MASTER")
        elif how is Split.SET_BACK:
            rows = self._set_back(marked[0])
        elif how in (Split.FAILOVER, Split.FAILOVER_LOSS):
            rows = self._fail_over(marked, how)
        elif how is Split.RENAMED:
            self._rename()
        elif how is Split.CLOCK:
            self._set_clock_back()
        else:
            for mode in ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"):
                self.sql(f"SET GLOBAL gtid_mode = {mode}")
        now = time.time()
        self.states.split(rows, min(low, now), max(low, now))
        present = self.rows()
        assert present == tuple(sorted(rows)), (how, present, rows)

    def mend(self, how: Split) -> None:
        """Turn on GTIDs again after a split that turned them off, for later splits."""
        if how is Split.NO_GTIDS:
            low = time.time()
            for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
                self.sql(f"SET GLOBAL gtid_mode = {mode}")
            self.states.split(self.states.last.rows, low, time.time())

    def _set_back(self, rows: Rows) -> Rows:
        self.stop()
        self._back_to_mark()
        self.start()
        return rows

    def _set_clock_back(self) -> None:
        seconds = self.chance.randrange(20, 90)
        time.clock_settime(time.CLOCK_REALTIME, time.time() - seconds)

    def _rename(self) -> None:
        old, self._base = self._base, f"renamed{self._number}"
        subprocess.run([SERVER, "stop"], check=True)
        for path in sorted(PARENT.glob(f"{old}.*")):
            path.rename(PARENT / path.name.replace(old, self._base, 1))
        index = PARENT / f"{self._base}.index"
        index.write_text(index.read_text().replace(f"/{old}.", f"/{self._base}."))
        self._configure("log_bin", str(PARENT / self._base))
        self.start()

    def _configure(self, name: str, value: str) -> None:
        text = re.sub(rf"(?m)^{name} = .*$", f"{name} = {value}", OPTIONS.read_text())
        assert f"{name} = {value}\n" in text
        OPTIONS.write_text(text)

    def _fail_over(self, marked: tuple[Rows, tuple[str, int]], how: Split) -> Rows:
        """Become a replica that was created at the mark and had fetched all later transactions, or not the last ones.

        The replica has its own identity and its own binlogs, which start at the mark.
        """
        rows, (file, offset) = marked
        later = [entry for entry in self.states.entries if entry.is_commit and entry.epoch == self.states.last.epoch]
        later = [entry for entry in later if len(entry.rows) > len(rows)]
        fetched = later if how is Split.FAILOVER else later[: self.chance.randrange(len(later))]
        kept = self._keep_binlogs(file)
        self.stop()
        self._back_to_mark()
        self._server_id += 1
        self._configure("server_id", str(self._server_id))
        (PARENT / "data" / "auto.cnf").unlink(missing_ok=True)
        self.start()
        if self.is_mysql:
            executed = self.value("SELECT @@GLOBAL.gtid_executed").replace("\n", "")
            self.sql("RESET BINARY LOGS AND GTIDS", f"SET GLOBAL gtid_purged = '{executed}'")
            if self.chance.random() < 0.5:
                # The first binlog starts before the server knows its GTIDs; the second contains them.
                self.sql("FLUSH BINARY LOGS")
        else:
            state = self.value("SELECT @@GLOBAL.gtid_binlog_state")
            self.sql("RESET MASTER", f"SET GLOBAL gtid_binlog_state = '{state}'")
        if fetched:
            self._replay(kept, file, offset, fetched[-1])
        shutil.rmtree(kept)
        return replace(fetched[-1]).rows if fetched else rows

    def _keep_binlogs(self, first: str) -> Path:
        kept = Path("/tmp/kept")
        kept.mkdir()
        for path in sorted(PARENT.glob(f"{self._base}.[0-9]*")):
            # MariaDB has an index of GTIDs (.idx) next to each binlog.
            if path.name >= first and path.suffix[1:].isdigit():
                shutil.copy(path, kept)
        return kept

    def _replay(self, kept: Path, file: str, offset: int, last: Entry) -> None:
        tool = "/opt/mysql/bin/mysqlbinlog" if self.is_mysql else "/usr/bin/mariadb-binlog"
        client = "/opt/mysql/bin/mysql" if self.is_mysql else "mariadb"
        names = [path for path in sorted(kept.iterdir()) if file <= path.name <= last.file]
        argv = [tool, f"--start-position={offset}", f"--stop-position={last.end}", *map(str, names)]
        text = subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"}).stdout
        subprocess.run([client, "-uroot", f"-S{SOCKET}"], input=text, check=True)
