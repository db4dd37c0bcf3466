"""Campaign: lock-free snapshots at random moments, each booted, each compared with the source's own binlogs.

Runs inside a guest (`python3 tests/lab campaign lockfree`). The ledger's load runs, with DDL, big transactions and
rotations, while the durability settings change. Snapshots are made without any lock. Each snapshot is then cloned and
started. The clone must contain exactly the transactions of the source's binlogs up to the recorded position, as the
server's own tool decodes them: the GTIDs, every transfer, every balance, every complete big transaction, and every
scratch table with its columns.
"""

from __future__ import annotations

import argparse
import enum
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pymysql
from pydantic import SecretStr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.inside import ledger
from zsnapdb.cli.progress import Terminal
from zsnapdb.config import load
from zsnapdb.gtid import Gtids
from zsnapdb.jobs.backup.preflight import Observed, observe
from zsnapdb.jobs.backup.server_source import ServerProof, ServerSource
from zsnapdb.jobs.backup.snapshot_set import Taken, take
from zsnapdb.jobs.clock import fresh_backup_id
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.server_copy.prepare import Copy, CopyLayout, lay_out
from zsnapdb.model import Flavour, parse_gtids
from zsnapdb.planning.server_copy.identity import Access, PathMap
from zsnapdb.zfs import datasets, owned

SOCKET = "/run/mysqld/mysqld.sock"
CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
PARENT = Path("/var/lib/mysql")
BATCH = 10
BIG_ROWS = 30
_DDL = re.compile(r"^(CREATE|DROP|ALTER) TABLE (?:IF EXISTS )?`?scratch`?\.`?(d_\d+)`?")


class Disturbing(enum.StrEnum):
    """Work that runs beside the ledger's load."""

    DDL = "ddl"
    BIG = "big"
    ROTATION = "rotation"


class Disturbance:
    """Runs DDL, big transactions and rotations beside the ledger's load, each in a thread of its own, until stopped."""

    def __init__(self, seed: int, kinds: Sequence[Disturbing]) -> None:
        self.failures: list[str] = []
        self._random = random.Random(seed)
        self._stop = threading.Event()
        jobs = {Disturbing.DDL: self._ddl, Disturbing.BIG: self._big, Disturbing.ROTATION: self._rotate}
        self._threads = [threading.Thread(target=self._guarded, args=(jobs[kind],), daemon=True) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the statements that are running."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, job: object) -> None:
        try:
            with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
                job(cursor)  # type: ignore[operator]
        except pymysql.MySQLError as error:
            self.failures.append(f"{error}")

    def _ddl(self, cursor: pymysql.cursors.Cursor) -> None:
        number = next_number(
            cursor,
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'scratch' AND table_name LIKE"
            " 'd\\_%'",
        )
        while not self._stop.wait(0.05):
            cursor.execute(f"CREATE TABLE scratch.d_{number} (id INT PRIMARY KEY, body VARCHAR(200))")
            cursor.execute(f"INSERT INTO scratch.d_{number} VALUES (1, 'one'), (2, 'two')")
            cursor.execute(
                f"ALTER TABLE scratch.d_{number} ADD COLUMN extra INT,"
                f" ALGORITHM={self._random.choice(['COPY', 'INPLACE'])}"
            )
            if number > 3:
                cursor.execute(f"DROP TABLE IF EXISTS scratch.d_{number - 3}")
            number += 1

    def _big(self, cursor: pymysql.cursors.Cursor) -> None:
        number = next_number(cursor, "SELECT CONCAT('b_', number) FROM scratch.batches")
        while not self._stop.wait(self._random.uniform(0.1, 1.0)):
            cursor.execute("BEGIN")
            for row in range(BIG_ROWS):
                cursor.execute("INSERT INTO scratch.big VALUES (%s, %s, REPEAT('x', 30000))", (number, row))
            cursor.execute("INSERT INTO scratch.batches VALUES (%s)", (number,))
            cursor.execute("COMMIT")
            number += 1

    def _rotate(self, cursor: pymysql.cursors.Cursor) -> None:
        while not self._stop.wait(self._random.uniform(0.05, 0.6)):
            cursor.execute("FLUSH BINARY LOGS")


def next_number(cursor: pymysql.cursors.Cursor, sql: str) -> int:
    """Return the next free number for names such as d_17."""
    cursor.execute(sql)
    return max((int(str(row[0]).rpartition("_")[2]) for row in cursor.fetchall()), default=0) + 1


MARK = owned.Mark("zsnapdb:campaign", "lockfree")
"""The mark of the datasets that a round creates."""


@dataclass
class Truth:
    """The contents of the source's binlogs up to a position, which advances from snapshot to snapshot."""

    tool: str
    file: str
    offset: int
    journal: set[ledger.Key] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)
    tables: dict[str, set[str]] = field(default_factory=dict)

    def advance(self, file: str, offset: int) -> None:
        """Add the events between the last position and this position."""
        names = [Path(line).name for line in (PARENT / "binlog.index").read_text().splitlines()]
        names = names[names.index(self.file) : names.index(file) + 1]
        if (file, offset) == (self.file, self.offset):
            return
        argv = [
            self.tool,
            "--verbose",
            "--base64-output=DECODE-ROWS",
            f"--start-position={self.offset}",
            f"--stop-position={offset}",
        ]
        env = {**os.environ, "LC_ALL": "C"}
        done = subprocess.Popen(
            [*argv, *[str(PARENT / n) for n in names]], stdout=subprocess.PIPE, text=True, errors="replace", env=env
        )
        assert done.stdout is not None
        values: list[int] | None = None
        table = ""
        for line in done.stdout:
            if line.startswith("### INSERT INTO `"):
                table = line.removeprefix("### INSERT INTO ").strip().replace("`", "")
                values = [] if table in ("ledger.journal", "scratch.batches") else None
            elif values is not None and line.startswith("###   @"):
                values.append(int(line.partition("=")[2].split(" ")[0]))
                values = self._row(table, values)
            else:
                self._ddl(line)
        if done.wait() != 0:
            raise RuntimeError(
                f"{argv[0]} failed on {names}; there are {sorted(os.listdir(PARENT))}; the index has"
                f" {(PARENT / 'binlog.index').read_text().split()}"
            )
        self.file, self.offset = file, offset

    def _row(self, table: str, values: list[int]) -> list[int] | None:
        if table == "scratch.batches":
            self.batches.add(values[0])
            return None
        if len(values) == 2:
            self.journal.add((values[0], values[1]))
            return None
        return values

    def _ddl(self, line: str) -> None:
        match = _DDL.match(line)
        if match is None:
            return
        verb, name = match.groups()
        if verb == "CREATE":
            self.tables[name] = {"id", "body"}
        elif verb == "ALTER":
            self.tables[name].add("extra")
        else:
            self.tables.pop(name, None)


@dataclass(frozen=True)
class Round:
    """One snapshot, its settings, and its errors (none if the snapshot is correct)."""

    number: int
    settings: dict[str, str]
    position: str
    held_ms: float
    boot_seconds: float
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Shot:
    """A snapshot that was made but not yet compared."""

    number: int
    settings: dict[str, str]
    taken: Taken[ServerProof]


class Campaign:
    """All rounds against the guest's server."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        text = CONFIG.read_text().replace('repository = "s3"', 'repository = "s3"\nlock = { strategy = "none" }', 1)
        config = Path("/tmp/lockfree.toml")
        config.write_text(text)
        self.instance = Instance.of(load(config), None)
        self.rounds: list[Round] = []
        self.committed: dict[int, int] = {}
        self.longest_wait = 0.0

    def sql(self, *statements: str) -> None:
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def set_up(self) -> None:
        """Create the ledger and the scratch schema. The truth begins here."""
        with self.instance.session() as session:
            self.flavour = observe(self.instance, session).facts.flavour
            (row,) = session.records(
                "SHOW BINARY LOG STATUS" if self.flavour is Flavour.MYSQL else "SHOW MASTER STATUS"
            )
        tool = "/opt/mysql/bin/mysqlbinlog" if self.flavour is Flavour.MYSQL else "/usr/bin/mariadb-binlog"
        self.truth = Truth(tool, str(row["File"]), int(row["Position"]))
        ledger.set_up(SOCKET)
        self.sql(
            "CREATE DATABASE scratch",
            "CREATE TABLE scratch.big (batch INT, line INT, body MEDIUMTEXT, PRIMARY KEY (batch, line))",
            "CREATE TABLE scratch.batches (number INT PRIMARY KEY)",
        )

    def durability(self) -> tuple[str, str]:
        """Return sync_binlog and innodb_flush_log_at_trx_commit for the next snapshot."""
        return self.random.choice("01"), self.random.choice("12")

    def disturbances(self) -> tuple[Disturbing, ...]:
        """Return the work beside the load of the next batch."""
        kinds = (Disturbing.DDL, Disturbing.BIG)
        return (*kinds, Disturbing.ROTATION) if self.random.random() < 0.5 else kinds

    def batch(self, first: int, count: int) -> None:
        """Make `count` snapshots under load, then compare each one without load."""
        kinds, compressing = self.disturbances(), self.random.random() < 0.4
        variable = "binlog_transaction_compression" if self.flavour is Flavour.MYSQL else "log_bin_compress"
        self.sql(f"SET GLOBAL {variable} = {'ON' if compressing else 'OFF'}")
        load_running = ledger.Load(SOCKET, rate=self.random.choice([10.0, 30.0, 80.0]), first_number=self.committed)
        disturbance = Disturbance(self.random.randrange(1 << 30), kinds)
        load_running.start()
        shots = []
        try:
            with self.instance.session() as session:
                observed = observe(self.instance, session)
                for number in range(first, first + count):
                    sync, flush = self.durability()
                    self.sql(f"SET GLOBAL sync_binlog = {sync}", f"SET GLOBAL innodb_flush_log_at_trx_commit = {flush}")
                    time.sleep(self.random.uniform(0.05, 1.5))
                    settings = {
                        "sync_binlog": sync,
                        "flush": flush,
                        "beside": "+".join(kinds) or "nothing",
                        "compressing": str(compressing),
                    }
                    shots.append(
                        Shot(
                            number,
                            settings,
                            take(
                                ServerSource(self.instance, session),
                                observed,
                                self.instance.name,
                                fresh_backup_id(),
                                Terminal(),
                            ),
                        )
                    )
        finally:
            disturbance.stop()
            load_running.stop()
            self.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        assert not load_running.failures + disturbance.failures, (load_running.failures, disturbance.failures)
        self.committed.update(load_running.committed)
        self.longest_wait = max(self.longest_wait, load_running.longest_wait)
        for shot in shots:
            self._look(shot, observed)

    def _look(self, shot: Shot, observed: Observed) -> None:
        position = shot.taken.proof.position
        assert position.coordinates is not None
        self.truth.advance(position.coordinates.file, position.coordinates.offset)
        began = time.monotonic()
        wrong = self._boot_and_compare(shot.taken, observed)
        result = Round(
            shot.number,
            shot.settings,
            position.describe(),
            shot.taken.proof.held_ms,
            round(time.monotonic() - began, 2),
            tuple(wrong),
        )
        self.rounds.append(result)
        print(
            f"{'ok  ' if not wrong else 'FAIL'} {result.number:3d}"
            f" {' '.join(f'{k}={v}' for k, v in result.settings.items())} {position.coordinates} {wrong}",
            flush=True,
        )

    def _boot_and_compare(self, taken: Taken[ServerProof], observed: Observed) -> list[str]:
        names = [s.full_name for s in taken.set.snapshots.values()]
        layout = lay_out(
            {r: (d, observed.mountpoints[r]) for r, d in observed.volumes.items()}, "tank/campaign", "/mnt/campaign"
        )
        try:
            for role, dataset in sorted(layout.datasets.items(), key=lambda item: len(item[1])):
                options = {"mountpoint": layout.mountpoints[role], MARK.name: "lockfree"}
                datasets.clone(taken.set.snapshots[role].full_name, dataset, options)
            return self._compare(taken, observed, layout)
        finally:
            made = [dataset for dataset in layout.datasets.values() if datasets.exists(dataset)]
            owned.destroy_datasets(made, MARK)
            owned.destroy_set(names, taken.set.backup_id)

    def _compare(self, taken: Taken[ServerProof], observed: Observed, layout: CopyLayout) -> list[str]:
        pairs = tuple((observed.mountpoints[role], layout.mountpoints[role]) for role in layout.datasets)
        copy = Copy(
            self.flavour, observed.facts.variables, PathMap(pairs), Path("/mnt/campaign"), self.instance.settings.server
        )
        copy.make_private()
        process = copy.process()
        try:
            identity = copy.identity(server_id=observed.facts.server_id, port=None, access=Access.PRIVATE_SOCKET)
            copy.start(identity, "root", SecretStr("")).close()
            with ledger.connect(str(process.socket), "root", "", "ledger") as connection:
                return differences(connection, self.truth, self.flavour, taken.proof.position.gtids)
        finally:
            process.kill()


def differences(connection: pymysql.Connection, truth: Truth, flavour: Flavour, recorded: Gtids | None) -> list[str]:
    """Return every difference between a booted copy and the binlogs up to the position; `recorded` are its GTIDs."""
    wrong = []
    variable = "gtid_executed" if flavour is Flavour.MYSQL else "gtid_binlog_pos"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        gtids = parse_gtids(flavour, str(cursor.fetchall()[0][0]))
        cursor.execute("SELECT batch, COUNT(*), SUM(LENGTH(body)) FROM scratch.big GROUP BY batch")
        big = set(cursor.fetchall())
        cursor.execute("SELECT number FROM scratch.batches")
        batches = {row[0] for row in cursor.fetchall()}
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'scratch' AND"
            " table_name LIKE 'd\\_%'"
        )
        tables: dict[str, set[str]] = {}
        for table, column in cursor.fetchall():
            tables.setdefault(table, set()).add(column)
        for table in tables:
            cursor.execute(f"CHECK TABLE scratch.{table}")
            wrong += [
                f"CHECK TABLE: {row}"
                for row in cursor.fetchall()
                if row[2] == "error" or (row[2] == "status" and row[3] != "OK")
            ]
    if gtids != recorded:
        wrong.append(f"recovered to {gtids}, recorded {recorded}")
    if batches != truth.batches or big != {(n, BIG_ROWS, BIG_ROWS * 30000) for n in batches}:
        wrong.append(f"big transactions: {sorted(batches ^ truth.batches)} differ, or one is incomplete")
    if tables != truth.tables:
        wrong.append(f"scratch tables {tables}, expected {truth.tables}")
    state = ledger.read_state(connection)
    checks = ledger.compare("", state, frozenset(truth.journal), state.ballast)
    return wrong + [f"{check.name}: {check.detail}" for check in checks if not check.ok]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    campaign = Campaign(options.seed)
    campaign.set_up()
    began = time.monotonic()
    for first in range(1, options.rounds + 1, BATCH):
        try:
            campaign.batch(first, min(BATCH, options.rounds + 1 - first))
        except Exception:
            # The log of the source explains most errors.
            print(Path("/var/log/lab/server.log").read_text()[-4000:], flush=True)
            raise
    bad = [r for r in campaign.rounds if r.wrong]
    held_ms = sorted(r.held_ms for r in campaign.rounds)
    print(
        f"{campaign.flavour}: {len(campaign.rounds) - len(bad)} of {len(campaign.rounds)} lock-free snapshots exact,"
        f" seed {options.seed}, {len(campaign.truth.journal)} transfers, {len(campaign.truth.batches)} big"
        f" transactions; snapshot {held_ms[len(held_ms) // 2]:.1f} ms median, {held_ms[-1]:.1f} ms longest; longest"
        f" transfer {campaign.longest_wait * 1000:.0f} ms; {time.monotonic() - began:.0f} s"
    )
    document = {"flavour": campaign.flavour.value, "seed": options.seed, "rounds": [asdict(r) for r in campaign.rounds]}
    Path("/out/campaign.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if bad or not campaign.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
