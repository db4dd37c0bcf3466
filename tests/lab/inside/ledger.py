"""A workload with a known truth: transfers between accounts, each recorded in a journal.

Every transfer is a function of its worker and number, so the journal rows determine the balance of every account. The
sum of all balances never changes, and each worker's numbers have no gap. The journal rows up to a binlog position come
from the source's own binlogs, decoded by the server's own tool, so the truth does not depend on zsnapdb.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
from pymysql.constants import CLIENT

ACCOUNTS = 200
INITIAL = 1_000_000
BALLAST_ROWS = 100
BALLAST_BYTES = 60_000
RETRY = {1205, 1213}

Key = tuple[int, int]


@dataclass(frozen=True)
class Transfer:
    """A transfer of an amount from `source` to `target`."""

    source: int
    target: int
    amount: int


def transfer(worker: int, number: int) -> Transfer:
    """Return the transfer of a worker with this number; always the same."""
    word = int.from_bytes(hashlib.blake2b(f"{worker}/{number}".encode(), digest_size=8).digest(), "big")
    source = word % ACCOUNTS
    target = (source + 1 + (word >> 16) % (ACCOUNTS - 1)) % ACCOUNTS
    return Transfer(source, target, (word >> 40) % 1000 + 1)


def balances(rows: Iterable[Key]) -> dict[int, int]:
    """Return the balance of every account after exactly the transfers in the journal rows."""
    accounts = dict.fromkeys(range(ACCOUNTS), INITIAL)
    for worker, number in rows:
        t = transfer(worker, number)
        accounts[t.source] -= t.amount
        accounts[t.target] += t.amount
    return accounts


def connect(
    socket: str,
    user: str = "app",
    password: str = "lab-app",
    database: str | None = "ledger",
    read_timeout: float = 120,
    client_flag: int = 0,
) -> pymysql.Connection:
    """Open a connection on a socket, or to an IPv4 address.

    An answer that takes longer than `read_timeout` seconds is an error.
    """
    return pymysql.connect(
        host=None if "/" in socket else socket,
        unix_socket=socket if "/" in socket else None,
        user=user,
        password=password,
        database=database,
        autocommit=True,
        read_timeout=read_timeout,
        client_flag=client_flag,
    )


def connection_id(connection: pymysql.Connection) -> int:
    """Return the server's id of a connection, for KILL."""
    number: int = connection.thread_id()  # type: ignore[no-untyped-call]
    return number


def connect_when_up(socket: str, process: subprocess.Popen[bytes], seconds: float = 300.0) -> pymysql.Connection:
    """Open a connection as soon as the server answers on its socket. RuntimeError if it ends or takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server on {socket} did not come up: exit status {process.poll()}")
        if Path(socket).exists():
            try:
                return connect(socket)
            except pymysql.OperationalError:
                pass
        time.sleep(0.1)


def set_up(socket: str, engine: str = "InnoDB", ballast_rows: int = BALLAST_ROWS) -> None:
    """Create the tables, the accounts and some ballast, so that a full backup has data to transfer.

    The ballast is only 6 MB, because every full backup, restore, drill and binlog reader of a guest has to process it.
    """
    with connect(socket) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE={engine}")
        cursor.execute(f"CREATE TABLE journal (worker INT, number INT, PRIMARY KEY (worker, number)) ENGINE={engine}")
        cursor.execute(f"CREATE TABLE ballast (id INT PRIMARY KEY, body MEDIUMBLOB) ENGINE={engine}")
        cursor.executemany("INSERT INTO accounts VALUES (%s, %s)", [(n, INITIAL) for n in range(ACCOUNTS)])
        noise = random.Random(1)
        for start in range(0, ballast_rows, 20):
            rows = [(n, noise.randbytes(BALLAST_BYTES // 2).hex()) for n in range(start, start + 20)]
            cursor.executemany("INSERT INTO ballast VALUES (%s, %s)", rows)


@dataclass
class Load:
    """Workers with about `rate` transfers per second each. `committed` has the acknowledged transfers."""

    socket: str
    workers: int = 3
    rate: float = 20.0
    first_number: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    longest_wait: float = 0.0

    def start(self) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(self.workers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the workers after their current transfers."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def total(self) -> int:
        """Return the number of acknowledged transfers."""
        return sum(self.committed.values())

    def wait_for(self, more: int, seconds: float = 300.0) -> None:
        """Wait until `more` further transfers were acknowledged."""
        goal, deadline = self.total() + more, time.monotonic() + seconds
        while self.total() < goal:
            if time.monotonic() > deadline or self.failures:
                raise RuntimeError(f"the load made {self.total()} of {goal} transfers; {self.failures[:3]}")
            time.sleep(0.05)

    def _run(self, worker: int) -> None:
        number = self.first_number.get(worker, 0)
        try:
            connection = connect(self.socket, client_flag=CLIENT.MULTI_STATEMENTS)
            with connection:
                while not self._stop.is_set():
                    number += 1
                    began = time.monotonic()
                    while not self._transfer(connection, worker, number):
                        pass
                    took = time.monotonic() - began
                    self.longest_wait = max(self.longest_wait, took)
                    self.committed[worker] = number
                    self._stop.wait(max(0.0, 1 / self.rate - took))
        except pymysql.MySQLError as error:
            self.failures.append(f"worker {worker}, transfer {number}: {error}")

    def _transfer(self, connection: pymysql.Connection, worker: int, number: int) -> bool:
        try:
            with connection.cursor() as cursor:
                cursor.execute(changes(worker, number))
                while cursor.nextset():
                    pass
            connection.commit()
        except pymysql.OperationalError as error:
            if error.args[0] not in RETRY:
                raise
            connection.rollback()
            return False
        return True


def changes(worker: int, number: int) -> str:
    """Return the statements of a transfer without COMMIT, for one packet: in a guest the answers cost most.

    The accounts are changed in the order of their numbers, so that two transfers rarely wait for each other. Between
    these statements and the COMMIT the transaction is open, with all its changes.
    """
    t = transfer(worker, number)
    changes = sorted([(t.source, -t.amount), (t.target, t.amount)])
    updates = [f"UPDATE accounts SET balance = balance + {change} WHERE id = {account}" for account, change in changes]
    return "; ".join(["BEGIN", *updates, f"INSERT INTO journal VALUES ({worker}, {number})"])


@dataclass(frozen=True)
class State:
    """The ledger's data in a server."""

    journal: frozenset[Key]
    accounts: dict[int, int]
    ballast: str


def read_state(connection: pymysql.Connection) -> State:
    """Return the ledger's data from one consistent snapshot."""
    with connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT worker, number FROM journal")
        journal = frozenset(cursor.fetchall())
        cursor.execute("SELECT id, balance FROM accounts")
        accounts = dict(cursor.fetchall())
        digest = hashlib.sha256()
        # The server computes the hashes: in a guest, sending all data through a socket is slow.
        cursor.execute("SELECT id, SHA2(body, 256) FROM ballast ORDER BY id")
        for number, own in cursor.fetchall():
            digest.update(f"{number}:{own}".encode())
        cursor.execute("ROLLBACK")
    return State(journal, accounts, digest.hexdigest())


def journal_in_binlog(folder: Path, index: Path, tool: str, stop_file: str, stop_offset: int) -> frozenset[Key]:
    """Return the journal rows in the source's binlogs up to a position, as decoded by the server's own tool."""
    names = [Path(line).name for line in index.read_text().splitlines()]
    names = names[: names.index(stop_file) + 1]
    argv = [
        tool,
        "--verbose",
        "--base64-output=DECODE-ROWS",
        f"--stop-position={stop_offset}",
        *[str(folder / n) for n in names],
    ]
    rows: set[Key] = set()
    values: list[int] | None = None
    # Line by line: the output for long binlogs exceeds a guest's memory.
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, errors="replace", env={**os.environ, "LC_ALL": "C"}
    ) as said:
        assert said.stdout is not None
        for line in said.stdout:
            if line.startswith("### INSERT INTO `ledger`.`journal`"):
                values = []
            elif values is not None and line.startswith("###   @"):
                values.append(int(line.partition("=")[2].split(" ")[0]))
                if len(values) == 2:
                    rows.add((values[0], values[1]))
                    values = None
    if said.returncode != 0:
        raise RuntimeError(f"{tool} ended with {said.returncode}")
    return frozenset(rows)


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    detail: str


def compare(where: str, state: State, truth: frozenset[Key], ballast: str) -> list[Check]:
    """Return the checks of a state against the truth: sum, gaps, extra rows, contents."""
    total = sum(state.accounts.values())
    workers = {worker for worker, _ in state.journal}
    gaps = [
        w
        for w in workers
        if {n for v, n in state.journal if v == w} != set(range(1, sum(v == w for v, _ in state.journal) + 1))
    ]
    missing, stray = truth - state.journal, state.journal - truth
    return [
        Check(f"{where}: the sum of all balances is unchanged", total == ACCOUNTS * INITIAL, f"{total}"),
        Check(
            f"{where}: no worker's journal has a gap",
            not gaps,
            f"{len(state.journal)} transfers of {len(workers)} workers",
        ),
        Check(
            f"{where}: exactly the transactions up to the recorded position",
            not missing and not stray and bool(truth),
            f"{len(truth)} in the source's binlog up to there, {len(missing)} missing, {len(stray)} stray",
        ),
        Check(
            f"{where}: every balance is the one those transactions make",
            state.accounts == balances(truth),
            f"{len(state.accounts)} accounts",
        ),
        Check(f"{where}: the rest of the data is identical", state.ballast == ballast, f"SHA-256 {state.ballast[:16]}"),
    ]
