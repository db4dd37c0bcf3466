"""Campaign: restores to points in time, each compared with the source's own binlogs up to that point.

It runs inside a guest (`python3 tests/lab campaign points`). The ledger's load runs, with DDL, transactions of a
megabyte, rotations and compressed transactions. Backups are made and all binlogs are archived. Then points are chosen
at random: GTIDs, before-GTIDs and times, some inside bursts within one second, some at the ends of binlogs, some in the
active binlog. Each point is restored from the repository. The restored server must contain exactly the transactions of
the source's binlogs up to the point, as the server's own tool decodes them.

`--from-host`: a local snapshot set every ten seconds, with backups, prunes and clones in parallel. Then the store is
unreachable, and each point is restored from the sets and binlogs on the host, as by a rewind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support.binlog_contents import PARENT, Truth, differences
from tests.campaigns.support.disturbance import SOCKET, Disturbance, Disturbing
from tests.campaigns.support.local_sets import AWAY, CONFIG, LocalSets, leaks, write_away, write_keep
from tests.lab.inside import ledger
from tests.lab.inside.zygote import QUICK, Zygote
from tests.lab.inside.zygote import SOCKET as ZYGOTE
from zsnapdb.base.domain_types import Flavour, parse_gtids
from zsnapdb.base.gtid import Gtids, joined
from zsnapdb.mysql.binlog.transactions import transactions
from zsnapdb.zfs.command import run_when_free

PASSES = 3
EVERY = 10.0
BESIDE = (
    ("backup", "main", "--wait", "120s"),
    ("clone", "create", "main", "--name", "beside"),
    ("clone", "destroy", "beside"),
    ("prune", "main", "--wait", "120s"),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MYSQL_STAMP = re.compile(r"immediate_commit_timestamp=(\d+)")
_MYSQL_GTID = re.compile(r"^SET @@SESSION.GTID_NEXT= '([0-9a-f-]+:\d+)'")
_HEADER = re.compile(r"^#(\d{6}\s+\d{1,2}:\d\d:\d\d) server id")
_MARIADB_GTID = re.compile(r"GTID (\d+-\d+-\d+)")


@dataclass(frozen=True)
class Written:
    """A transaction of the source: its GTID, its binlog, its end there, and its commit time in microseconds.

    The commit time comes from the server's own tool.
    """

    gtid: str
    file: str
    end: int
    committed: int


@dataclass(frozen=True)
class Target:
    """A point: its kind, the argument of --to, and the index of its last transaction (-1: only the backup)."""

    kind: str
    to: str
    last: int


@dataclass(frozen=True)
class Round:
    """One restore: its point, its duration in seconds, and its errors (none if the restore is correct)."""

    number: int
    kind: str
    to: str
    backup: str
    replayed: int
    seconds: float
    wrong: tuple[str, ...]


def stamps(tool: str, files: list[Path], flavour: Flavour) -> dict[str, int]:
    """Return the commit time of each transaction in microseconds, from the server's own tool."""
    done = subprocess.Popen(
        [tool, *(["--base64-output=DECODE-ROWS"]), *map(str, files)],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
    )
    assert done.stdout is not None
    commits: dict[str, int] = {}
    stamp, gtid = 0, ""
    for line in done.stdout:
        if flavour is Flavour.MYSQL:
            if match := _MYSQL_STAMP.search(line):
                stamp = int(match.group(1))
            elif match := _MYSQL_GTID.match(line):
                commits[match.group(1)] = stamp
        elif match := _HEADER.match(line):
            seconds = datetime.strptime(" ".join(match.group(1).split()), "%y%m%d %H:%M:%S").replace(tzinfo=UTC)
            named = _MARIADB_GTID.search(line)
            gtid = named.group(1) if named else gtid
            if (
                gtid
                and "Rotate" not in line
                and "Gtid list" not in line
                and "Start: binlog" not in line
                and "Binlog checkpoint" not in line
            ):
                commits[gtid] = max(commits.get(gtid, 0), int(seconds.timestamp()) * 1_000_000)
            else:
                gtid = named.group(1) if named else ""
    if done.wait() != 0:
        raise RuntimeError(f"{tool} failed")
    return commits


def _runs(pid: object) -> bool:
    """Whether the process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Campaign:
    """All rounds on the guest's server."""

    def __init__(self, seed: int, sets: LocalSets | None) -> None:
        self.random = random.Random(seed)
        self.sets = sets
        self.rounds: list[Round] = []
        self.truth: Truth
        self.flavour = Flavour(Path("/etc/lab-flavour").read_text().strip())
        self.tool = "/opt/mysql/bin/mysqlbinlog" if self.flavour is Flavour.MYSQL else "/usr/bin/mariadb-binlog"

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def zsnapdb(self, *words: str, config: Path = CONFIG) -> dict[str, Any]:
        env = {**os.environ, "ZSNAPDB_CONFIG": str(config)}
        done = subprocess.run([QUICK, *words, "--json"], capture_output=True, text=True, timeout=600, env=env)
        if done.returncode != 0:
            raise RuntimeError(f"zsnapdb {' '.join(words)} ended with {done.returncode}: {done.stderr[-3000:]}")
        output: dict[str, Any] = json.loads(done.stdout)
        return output

    def write_history(self, seconds: float) -> None:
        """Write under changing settings, with backups in between, and archive all binlogs.

        The active binlog is archived without a rotation.
        """
        (row,) = self.sql("SHOW BINARY LOG STATUS" if self.flavour is Flavour.MYSQL else "SHOW MASTER STATUS")
        self.begin = str(row[0]), int(str(row[1]))
        ledger.set_up(SOCKET, ballast_rows=60)
        self.sql(
            "CREATE DATABASE scratch",
            "CREATE TABLE scratch.big (batch INT, line INT, body MEDIUMTEXT, PRIMARY KEY (batch, line))",
            "CREATE TABLE scratch.batches (number INT PRIMARY KEY)",
        )
        self.backups = [self.zsnapdb("backup")["backup"]]
        if self.sets is not None:
            write_keep()
            self.sets.zsnapdb = self.zsnapdb
            self.sets.start()
        committed: dict[int, int] = {}
        for part in range(4):
            variable = "binlog_transaction_compression" if self.flavour is Flavour.MYSQL else "log_bin_compress"
            self.sql(f"SET GLOBAL {variable} = {'ON' if part % 2 else 'OFF'}")
            running = ledger.Load(SOCKET, rate=[80.0, 20.0, 40.0, 80.0][part], first_number=committed)
            disturbance = Disturbance(
                self.random.randrange(1 << 30), tuple(Disturbing) if part < 3 else (Disturbing.DDL, Disturbing.BIG)
            )
            running.start()
            time.sleep(seconds / 4)
            if part == 1:
                self.backups.append(self.zsnapdb("backup", "--wait", "120s")["backup"])
            disturbance.stop()
            running.stop()
            assert not running.failures + disturbance.failures, (running.failures, disturbance.failures)
            committed.update(running.committed)
        if self.sets is not None:
            self.sets.stop()
            print(self.sets.report(), flush=True)
            write_away()
        else:
            self.zsnapdb("binlog", "archive", "main", "--once")
        self._read()

    def _read(self) -> None:
        position = self.backups[0]["position"]
        names = [Path(line).name for line in (PARENT / "binlog.index").read_text().split()]
        names = names[names.index(position["binlog_file"]) :]
        known = stamps(self.tool, [PARENT / name for name in names], self.flavour)
        self.written: list[Written] = []
        for name in names:
            with (PARENT / name).open("rb") as file:
                for transaction in transactions(file, name):
                    if name != names[0] or transaction.start >= position["binlog_offset"]:
                        assert transaction.gtid is not None
                        self.written.append(Written(transaction.gtid, name, transaction.end, known[transaction.gtid]))
        self.reached: list[Gtids] = []
        gtids: Gtids | None = parse_gtids(self.flavour, position["gtids"])
        for one in self.written:
            gtids = joined(gtids, parse_gtids(self.flavour, one.gtid))
            assert gtids is not None
            self.reached.append(gtids)

    def targets(self, count: int) -> list[Target]:
        """Return `count` points, of all kinds and positions, in the order of the history."""
        files = list(dict.fromkeys(one.file for one in self.written))
        ends = [max(i for i, one in enumerate(self.written) if one.file == file) for file in files]
        tail = [i for i, one in enumerate(self.written) if one.file == files[-1]]
        seconds: dict[int, list[int]] = {}
        for index, one in enumerate(self.written):
            seconds.setdefault(one.committed // 1_000_000, []).append(index)
        bursts = [i for burst in seconds.values() if len(burst) >= 20 for i in burst[1:-1]] or list(
            range(1, len(self.written) - 1)
        )
        places = {
            "anywhere": range(1, len(self.written) - 1),
            "burst": bursts,
            "rotation": [e for e in ends[:-1] if e > 0] or ends,
            "tail": tail[:-1] or tail,
        }
        targets = []
        for number in range(count):
            where = list(places)[number % len(places)]
            index = self.random.choice(list(places[where]))
            kind = ("gtid", "before", "time")[number // len(places) % 3]
            targets.append(self._target(kind, where, index))
        return sorted(targets, key=lambda target: target.last)

    def _target(self, kind: str, where: str, index: int) -> Target:
        one = self.written[index]
        if kind == "gtid":
            return Target(f"gtid, {where}", one.gtid, index)
        if kind == "before":
            return Target(f"before, {where}", f"before-{one.gtid}", index - 1)
        exact = self.flavour is Flavour.MYSQL
        # MariaDB's times have seconds: choose any time in the second, but none after the end of the archive, which a
        # restore would refuse.
        moment = (
            one.committed
            if exact
            else min(one.committed + self.random.randrange(1_000_000), max(other.committed for other in self.written))
        )
        limit = moment if exact else moment // 1_000_000 * 1_000_000
        last = max(i for i, other in enumerate(self.written) if other.committed <= limit)
        return Target(f"time, {where}", (EPOCH + timedelta(microseconds=moment)).isoformat(), last)

    def round(self, number: int, target: Target) -> None:
        """Restore to the point, compare, and remove the restored server."""
        began = time.monotonic()
        wrong: list[str] = []
        restored: dict[str, Any] = {"backup_id": "", "top": "tank/campaign"}
        try:
            words = ("restore", "main", "--to", target.to, "--target", "tank/campaign", "--handover", "run")
            if self.sets is None:
                restored = self.zsnapdb(*words)
            else:
                restored = self.zsnapdb(*words, "--from", "local", config=AWAY)
            wrong = self._compare(target, restored)
        except (RuntimeError, OSError) as error:
            wrong = [str(error)]
        finally:
            self._remove(restored)
        replayed = sum(1 for step in restored.get("steps", ()) if step["kind"] == "replay")
        seconds = round(time.monotonic() - began, 1)
        self.rounds.append(
            Round(number, target.kind, target.to, str(restored["backup_id"]), replayed, seconds, tuple(wrong))
        )
        print(
            f"{'ok  ' if not wrong else 'FAIL'} {number:3d} {target.kind:18s} {target.to} from"
            f" {restored['backup_id']} in {seconds} s {wrong}",
            flush=True,
        )

    def _compare(self, target: Target, restored: dict[str, Any]) -> list[str]:
        last = self.written[target.last]
        self.truth.advance(last.file, last.end)
        socket = f"{restored['mount']}/.zsnapdb/server.sock"
        with ledger.connect(socket, "root", "", "ledger") as connection:
            wrong = differences(connection, self.truth, self.flavour, self.reached[target.last])
            with connection.cursor() as cursor:
                cursor.execute("SELECT COUNT(*) FROM mysql.user WHERE user LIKE 'zsnapdb\\_restore'")
                if cursor.fetchone() != (0,):
                    wrong.append("the account of the replay was left")
                cursor.execute("SHOW REPLICA STATUS" if self.flavour is Flavour.MYSQL else "SHOW ALL SLAVES STATUS")
                if cursor.fetchall():
                    wrong.append("a replication channel was left")
        following = restored["point"]["following"]
        expected = self.written[target.last + 1].gtid if target.last + 1 < len(self.written) else None
        if (following["gtid"] if following else None) != expected:
            wrong.append(f"the plan reports {following} as the next transaction, expected {expected}")
        return wrong

    def _remove(self, restored: dict[str, Any]) -> None:
        pid = restored.get("pid")
        if pid:
            os.kill(int(str(pid)), signal.SIGKILL)
            while _runs(pid):
                time.sleep(0.02)
        for journal in Path("/var/lib/zsnapdb/restores").glob("*.json"):
            journal.unlink()
        for dataset in ("tank/campaign/data", "tank/campaign"):
            listed = subprocess.run(
                ["zfs", "list", "-H", "-d", "1", "-t", "snapshot", "-o", "name", dataset],
                capture_output=True,
                text=True,
            )
            for name in listed.stdout.split():
                run_when_free(["zfs", "destroy", name])
            if listed.returncode == 0:
                run_when_free(["zfs", "destroy", dataset])
        shutil.rmtree("/var/lib/zsnapdb/restored/campaign", ignore_errors=True)


def bursts_of(written: list[Written]) -> int:
    """Return the largest number of transactions within one second."""
    times = sorted(one.committed for one in written)
    return max(bisect_right(times, time_ + 999_999) - i for i, time_ in enumerate(times))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--from-host", action="store_true", help="from local sets, while the store is away")
    options = parser.parse_args()
    zygote = Zygote(ZYGOTE)
    campaign = Campaign(options.seed, LocalSets(EVERY, BESIDE) if options.from_host else None)
    began = time.monotonic()
    campaign.write_history(options.seconds)
    targets = campaign.targets(options.points)
    # The truth only advances, so each pass goes forward. With several passes, an interrupted campaign has still visited
    # all parts of the history.
    for part in range(PASSES):
        campaign.truth = Truth(campaign.tool, *campaign.begin)
        for target in targets[part::PASSES]:
            campaign.round(len(campaign.rounds) + 1, target)
    zygote.close()
    bad = [r for r in campaign.rounds if r.wrong]
    took = sorted(r.seconds for r in campaign.rounds)
    print(
        f"{campaign.flavour}: {len(campaign.rounds) - len(bad)} of {len(campaign.rounds)} points exact, seed"
        f" {options.seed}, {len(campaign.written)} transactions in {len({w.file for w in campaign.written})} binlogs,"
        f" at most {bursts_of(campaign.written)} in a second; a restore {took[len(took) // 2]:.1f} s median;"
        f" {time.monotonic() - began:.0f} s"
    )
    document = {"flavour": campaign.flavour.value, "seed": options.seed, "rounds": [asdict(r) for r in campaign.rounds]}
    Path("/out/campaign.json").write_text(json.dumps(document, indent=1) + "\n")
    is_clean = campaign.sets is None or not (campaign.sets.failures or leaks())
    return 1 if bad or not campaign.rounds or not is_clean else 0


if __name__ == "__main__":
    sys.exit(main())
