"""Campaign: lock-free snapshots at random moments, each started and compared with the source's own binlogs.

It runs inside a guest (`python3 tests/lab campaign lockfree`). The ledger's load runs, with DDL, big transactions and
rotations, while the durability settings change. Snapshots are created without any lock. Each snapshot is then cloned
and started. The clone must contain exactly the transactions of the source's binlogs up to the recorded position, as the
server's own tool decodes them: the GTIDs, every transfer, every balance, every complete big transaction, and every
scratch table with its columns.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import SecretStr

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.campaigns.support.binlog_contents import Truth, differences
from tests.campaigns.support.disturbance import SOCKET, Disturbance, Disturbing
from tests.campaigns.support.refusals import Refusals
from tests.lab.inside import ledger
from zsnapdb.base.domain_types import Flavour
from zsnapdb.cli.progress import Terminal
from zsnapdb.config.settings import load
from zsnapdb.jobs.backup.preflight import Observed, observe
from zsnapdb.jobs.backup.server_source import ServerProof, ServerSource
from zsnapdb.jobs.backup.source_interface import ProvedSet, take
from zsnapdb.jobs.base.host import backup_id_at, system_now
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.host.server_copy import Copy, CopyLayout, lay_out
from zsnapdb.mysql.session import Session
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap
from zsnapdb.zfs import datasets, destruction

CONFIG = Path("/etc/zsnapdb/zsnapdb.toml")
BATCH = 10


MARK = destruction.Mark("zsnapdb:campaign", "lockfree")
"""The mark of the datasets that a round creates."""


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
    """A snapshot that is not compared yet."""

    number: int
    settings: dict[str, str]
    taken: ProvedSet[ServerProof]


class Campaign:
    """All rounds on the guest's server."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        text = CONFIG.read_text().replace(
            'repository = "s3"', 'repository = "s3"\nlock = { strategy = "none", budget = "10m" }', 1
        )
        config = Path("/tmp/lockfree.toml")
        config.write_text(text)
        self.instance = Instance.of(load(config), None)
        self.rounds: list[Round] = []
        self.committed: dict[int, int] = {}
        self.longest_wait = 0.0
        self.refusals = Refusals()

    def sql(self, *statements: str) -> None:
        with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def set_up(self) -> None:
        """Create the ledger and the scratch schema. The truth starts here."""
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
        """Return the additional work next to the load of the next batch."""
        kinds = (Disturbing.DDL, Disturbing.BIG)
        return (*kinds, Disturbing.ROTATION) if self.random.random() < 0.5 else kinds

    def batch(self, first: int, count: int) -> None:
        """Create `count` snapshots under load, then compare each one without load."""
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
                    taken = self.refusals.until_made(lambda: self._take(session, observed))
                    shots.append(Shot(number, settings, taken))
        finally:
            disturbance.stop()
            load_running.stop()
            self.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        assert not load_running.failures + disturbance.failures, (load_running.failures, disturbance.failures)
        self.committed.update(load_running.committed)
        self.longest_wait = max(self.longest_wait, load_running.longest_wait)
        for shot in shots:
            self._look(shot, observed)

    def _take(self, session: Session, observed: Observed) -> ProvedSet[ServerProof]:
        return take(
            ServerSource(self.instance, session),
            observed,
            self.instance.name,
            backup_id_at(system_now()),
            Terminal(),
            run_id=self.instance.host.run_id(),
        )

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

    def _boot_and_compare(self, taken: ProvedSet[ServerProof], observed: Observed) -> list[str]:
        names = [s.full_name for s in taken.set.snapshots.values()]
        layout = lay_out(
            {r: (d, observed.mountpoints[r]) for r, d in observed.volumes.items()}, "tank/campaign", "/mnt/campaign"
        )
        try:
            for role, dataset in sorted(layout.datasets.items(), key=lambda item: len(item[1])):
                options = {"mountpoint": layout.mountpoints[role], MARK.name: "lockfree"}
                snapshot = taken.set.snapshots[role]
                datasets.clone(snapshot.full_name, snapshot.guid, dataset, options)
            return self._compare(taken, observed, layout)
        finally:
            made = [dataset for dataset in layout.datasets.values() if datasets.exists(dataset)]
            destruction.destroy_datasets(made, MARK)
            destruction.destroy_set(names, taken.set.backup_id)

    def _compare(self, taken: ProvedSet[ServerProof], observed: Observed, layout: CopyLayout) -> list[str]:
        pairs = tuple((observed.mountpoints[role], layout.mountpoints[role]) for role in layout.datasets)
        copy = Copy(
            self.flavour,
            observed.facts.version,
            observed.facts.variables,
            PathMap(pairs),
            Path("/mnt/campaign"),
            self.instance.settings.server,
        )
        copy.make_private()
        process = copy.process()
        try:
            identity = copy.identity(server_id=observed.facts.server_id, port=None, access=LoginAccess.PRIVATE_SOCKET)
            copy.start(identity, "root", SecretStr("")).close()
            with ledger.connect(str(process.socket), "root", "", "ledger") as connection:
                return differences(connection, self.truth, self.flavour, taken.proof.position.gtids)
        finally:
            process.kill()


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
        f" transactions, {len(campaign.refusals.messages)} attempts refused for lock.deadline;"
        f" snapshot {held_ms[len(held_ms) // 2]:.1f} ms median, {held_ms[-1]:.1f} ms longest; longest"
        f" transfer {campaign.longest_wait * 1000:.0f} ms; {time.monotonic() - began:.0f} s"
    )
    document = {"flavour": campaign.flavour.value, "seed": options.seed, "rounds": [asdict(r) for r in campaign.rounds]}
    document["refused"] = campaign.refusals.messages
    Path("/out/campaign.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if bad or not campaign.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
