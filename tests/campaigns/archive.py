"""Campaign: power cuts of the guest at random moments while the archiver runs, checked by the bucket alone.

It runs on the host, because a guest cannot cut its own power (`python3 tests/lab campaign archive`). The ledger's load
runs with rotations and big transactions, `sync_binlog` 0 or 1 and `innodb_flush_log_at_trx_commit` 1 or 2. In some
rounds the archiver is killed first; then the power is cut.

- The bytes in the bucket must be a prefix of the binlogs that the server still has after its recovery.
- If a transfer was acknowledged longer before the cut than `binlog.interval`, it must be in the bucket.
- The next run must continue without a gap.

Each round has its own transfers. With `innodb_flush_log_at_trx_commit` 2 the tables may lose transactions that are in
the binlog, so only the binlog is compared. In other rounds the round's transfers must be in the tables too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.lab.guest import Guest, Lab

ON_HOST = True
PYTHON = "/opt/venv/bin/python"
CONFIG = "/etc/zsnapdb/zsnapdb.toml"
INTERVAL = 10.0
TOOLS = {"mysql": "/opt/mysql/bin/mysqlbinlog", "mariadb": "/usr/bin/mariadb-binlog"}

INSIDE = (
    "import sys, json, time, random, threading; sys.path.insert(0, '/checkout'); from tests.lab.inside import ledger;"
    " S = '/run/mysqld/mysqld.sock'\n"
)

LOAD = """
firsts = {worker: {ROUND} * 1000000 for worker in range(3)}
class Committed(dict):
    def __setitem__(self, worker, number):
        super().__setitem__(worker, number)
        sys.stdout.write(f'A {worker} {number} {time.time():.3f}\\n')
        sys.stdout.flush()
def disturb():
    chance = random.Random(SEED)
    with ledger.connect(S, 'root', '', None) as c, c.cursor() as cursor:
        cursor.execute(f'SET GLOBAL sync_binlog = {SYNC}')
        cursor.execute(f'SET GLOBAL innodb_flush_log_at_trx_commit = {FLUSH}')
        cursor.execute('CREATE TABLE IF NOT EXISTS ledger.big (id INT AUTO_INCREMENT PRIMARY KEY, body LONGBLOB)')
        while True:
            time.sleep(chance.uniform(0.3, 3.0))
            if chance.random() < 0.4:
                cursor.execute('FLUSH BINARY LOGS')
            else:
                cursor.execute("INSERT INTO ledger.big (body) VALUES (REPEAT('x', 3000000))")
                cursor.execute('DELETE FROM ledger.big')
threading.Thread(target=disturb, daemon=True).start()
load = ledger.Load(S, rate=7.0, first_number=firsts, committed=Committed())
load.start()
while not load.failures:
    time.sleep(0.2)
print('F', load.failures, flush=True)
"""

LOOK = """
import os, pathlib, shutil
from zsnapdb.config.settings import load
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.repository.binlog_archive import BinlogArchive
archive = BinlogArchive(Instance.of(load(pathlib.Path('/etc/zsnapdb/zsnapdb.toml')), 'main').open_repository(), 'main')
contents = archive.load()
out = pathlib.Path('/var/lib/fetched'); shutil.rmtree(out, ignore_errors=True); out.mkdir()
wrong = [str(e) for e in contents.damaged]
parent = pathlib.Path('/var/lib/mysql')
for file in contents.files:
    target = out / file.name
    archive.fetch(file, target)
    mine = target.read_bytes()
    theirs = bytearray((parent / file.name).read_bytes()[: len(mine)]); theirs[21] &= 254
    if mine != bytes(theirs):
        size = (parent / file.name).stat().st_size
        wrong.append(f'{file.name}: {len(mine)} bytes are archived, the server has {size}, and they differ')
    if file.gap:
        wrong.append(file.gap)
index = out / 'index'
index.write_text(''.join(f'{f.name}\\n' for f in contents.files))
last = contents.files[-1] if contents.files else None
rows = ledger.journal_in_binlog(out, index, '{TOOL}', last.name, last.end) if last else []
with ledger.connect(S) as c, c.cursor() as cursor:
    cursor.execute('SELECT worker, number FROM journal')
    server = {(int(w), int(n)) for w, n in cursor.fetchall()}
lost = [row for row in sorted(set(rows) - server) if row[1] // 1000000 == {ROUND}]
wrong += [] if {FLUSH} == 2 else [f'transfer {row} is archived and not on the server' for row in lost][:3]
print(json.dumps({'rows': sorted(rows), 'server': sorted(server), 'wrong': wrong}))
"""


@dataclass(frozen=True)
class Round:
    """One power cut: the settings, the seconds since the start, the lag of the bucket in seconds, and the errors."""

    number: int
    sync_binlog: int
    flush: int
    seconds: float
    acknowledged: int
    archived: int
    lag_seconds: float
    lost_by_server: int
    wrong: tuple[str, ...]


class Acknowledged:
    """The acknowledged transfers, with the guest's time.

    They arrive over the serial line, so a power cut does not lose them.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], float] = {}
        self.other = ""
        self._begun = b""
        self._lock = threading.Lock()

    def __call__(self, _descriptor: int, data: bytes) -> None:
        with self._lock:
            *lines, self._begun = (self._begun + data).split(b"\n")
            for line in lines:
                words = line.split()
                if len(words) == 4 and words[0] == b"A":
                    self.rows[(int(words[1]), int(words[2]))] = float(words[3])
                else:
                    self.other += line.decode(errors="replace") + "\n"


def play(guest: Guest, number: int, chance: random.Random) -> Round:
    """Run load and archiver, cut the power, and compare."""
    sync, flush = chance.choice([0, 1]), chance.choice([1, 2])
    acknowledged = Acknowledged()
    code = INSIDE + LOAD.replace("SEED", str(chance.randrange(1 << 30))).replace("{ROUND}", str(number))
    code = code.replace("{SYNC}", str(sync)).replace("{FLUSH}", str(flush))
    guest.spawn([PYTHON, "-c", code], sink=acknowledged)
    archiver = guest.spawn(["zsnapdb", "binlog", "archive", "main"])
    started = time.monotonic()
    _wait(guest, acknowledged)
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, 3))
        archiver.signal(9)
        archiver.wait(30)
        guest.spawn(["zsnapdb", "binlog", "archive", "main"])
        _wait(guest, acknowledged)
    time.sleep(chance.uniform(INTERVAL, 2 * INTERVAL))
    seconds = time.monotonic() - started
    guest.power_cut()
    guest.start()
    look = LOOK.replace("{FLUSH}", str(flush)).replace("{TOOL}", TOOLS[guest.flavour]).replace("{ROUND}", str(number))
    done = guest.run([PYTHON, "-c", INSIDE + look], env={"PYTHONPATH": "/checkout"}, timeout=300)
    if done.code != 0:
        errors = (f"the comparison ended with {done.code}", done.stderr[-2000:], acknowledged.other[-500:])
        return Round(number, sync, flush, seconds, len(acknowledged.rows), 0, 0.0, 0, errors)
    seen = json.loads(done.stdout)
    archived = {(int(w), int(n)) for w, n in seen["rows"]}
    server = {(int(w), int(n)) for w, n in seen["server"]}
    missing = [when for row, when in acknowledged.rows.items() if row not in archived]
    cut = max(acknowledged.rows.values(), default=0.0)
    lag = cut - min(missing) if missing else 0.0
    wrong = list(seen["wrong"])
    if not acknowledged.rows or not archived:
        wrong.append(f"nothing was acknowledged or archived: {acknowledged.other[-500:]}")
    if lag > INTERVAL:
        wrong.append(f"a transfer acknowledged {lag:.2f} s before the cut is not in the bucket")
    again = guest.run(["zsnapdb", "binlog", "archive", "main", "--once", "--json"], timeout=120)
    after = json.loads(again.stdout) if again.code == 0 else {"begun": again.stderr, "gaps": []}
    if after["begun"] is not None or after["gaps"]:
        wrong.append(f"the next run did not continue: {after['begun']} {after['gaps']}")
    return Round(
        number,
        sync,
        flush,
        seconds,
        len(acknowledged.rows),
        len(archived),
        lag,
        len(set(acknowledged.rows) - server),
        tuple(wrong),
    )


def _segments(guest: Guest) -> int:
    """Count the described segments in the bucket. Start again if the S3 server removes a folder in the meantime."""
    while True:
        try:
            return sum(1 for _ in guest.bucket.rglob("active/**/*.json"))
        except FileNotFoundError:
            continue


def _wait(guest: Guest, acknowledged: Acknowledged) -> None:
    """Wait until the newest archiver has stored a new segment and the load runs."""
    goal, deadline = len(acknowledged.rows) + 30, time.monotonic() + 120
    before = _segments(guest)
    while len(acknowledged.rows) < goal or _segments(guest) == before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"load or archiver did not come up: {acknowledged.other[-1000:]}")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds: list[Round] = []
    with Guest.boot(Lab.ready(), options.flavour) as guest:
        change = f's/repository = "s3"/repository = "s3"\\nbinlog = {{ interval = "{INTERVAL:g}s" }}/'
        guest.run(["sed", "-i", change, CONFIG]).check()
        guest.run([PYTHON, "-c", INSIDE + "ledger.set_up(S)"]).check()
        guest.run(["zsnapdb", "binlog", "archive", "--once"]).check()
        for number in range(1, options.rounds + 1):
            result = play(guest, number, random.Random(f"{options.seed}/{number}"))
            rounds.append(result)
            print(
                f"round {number}: cut after {result.seconds:.1f} s, sync_binlog {result.sync_binlog}, flush"
                f" {result.flush}: {result.acknowledged} acknowledged, bucket behind by {result.lag_seconds:.2f} s, the"
                f" server lost {result.lost_by_server}: {'; '.join(result.wrong) or 'right'}",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps([asdict(result) for result in rounds], indent=1))
    worst = max(result.lag_seconds for result in rounds)
    print(
        f"{sum(not result.wrong for result in rounds)} of {len(rounds)} right; the bucket was at most {worst:.2f} s"
        f" behind, {INTERVAL:g} s are configured"
    )
    return 0 if all(not result.wrong for result in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
