"""Campaign: an hour of the agent under load. Nothing leaks, and the last third is as fast as the second.

Every minute there is a backup and a local snapshot set. The binlog archive runs all the time, with prune and purge,
drills, verifications and health checks in between. Clones are created and destroyed while the ledger's load writes. A
census every 20 seconds counts memory, descriptors, processes, sessions, snapshots, bookmarks, holds, datasets, mounts
and files.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.campaigns.support.census import SOCKET, Census, by_folder, changes, memory, take
from tests.campaigns.support.faults import CONFIG, Site, add_innochecksum, must, run
from tests.lab.inside import ledger
from zsnapdb.agent.records import Records
from zsnapdb.planning.agent_jobs import HOST, JobKind, JobName, RunRecord

STATE = Path("/var/lib/zsnapdb/agent")
LIMIT = 80 << 20
"""Memory limit of the agent in bytes."""
SETTINGS = """
[instance.main.binlog]
keep = "5m"
[instance.main.keep]
last = 4
local = 3
[instance.main.local]
last = 4
[instance.main.objectives]
rpo = "15m"
backup_age = "15m"
[instance.main.agent]
archive = true
snapshot = { every = "1m" }
backup = { every = "1m" }
full = { every = "5m" }
prune = { every = "3m" }
purge = { every = "3m" }
verify = { every = "5m" }
drill = { every = "7m" }
[agent]
status = { every = "1m" }
reap = { every = "5m" }
[agent.http]
port = 9807
"""
JOBS = (
    *(JobName("main", kind) for kind in JobKind if kind not in (JobKind.REAP, JobKind.STATUS)),
    JobName(HOST, JobKind.REAP),
    JobName(HOST, JobKind.STATUS),
)


@dataclass
class Runs:
    """The finished runs; the agent's files have only the last one of each job."""

    records: Records
    seen: dict[str, RunRecord] = field(default_factory=dict)
    seconds: dict[JobName, float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def look(self) -> None:
        """Read the runs that have finished since the last call."""
        for name in JOBS:
            record = self.records.run(name)
            if record is None or record.finished is None or record.run_id in self.seen:
                continue
            self.seen[record.run_id] = record
            self.seconds[name] = (record.finished - record.started).total_seconds()
            self.count[str(name)] = self.count.get(str(name), 0) + 1
            if record.failures and record.exit_code != 75:
                self.failed.append(f"{name} ended with {record.exit_code}: {record.tail[-300:]}")


class Clones:
    """Creates and destroys clones, all the time."""

    def __init__(self) -> None:
        self.made = 0
        self.failed: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Destroy the last clone and stop."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(120):
            name = f"hour-{self.made}"
            for words in (("clone", "create", "main", "--name", name), ("clone", "destroy", name)):
                done = run("zsnapdb", *words, timeout=600)
                if done.returncode != 0:
                    self.failed.append(f"{words[1]} ended with {done.returncode}: {done.stderr[-300:]}")
            self.made += 1


def live(minutes: float, site: Site, load: ledger.Load, runs: Runs) -> list[Census]:
    """Wait, and take a census every 20 seconds."""
    began, censuses = time.monotonic(), []
    assert site.agent is not None
    while (age := time.monotonic() - began) < 60 * minutes:
        time.sleep(min(20.0, 60 * minutes - age))
        if site.agent.poll() is not None or load.failures:
            raise RuntimeError(f"the agent or the load has ended: {load.failures[:2]} {site.said.read_text()[-2000:]}")
        runs.look()
        backup = runs.seconds.get(JobName("main", JobKind.BACKUP), 0.0)
        wait, load.longest_wait = load.longest_wait, 0.0
        minute = (time.monotonic() - began) / 60
        one = take(minute, load.total(), wait, backup, site.agent.pid, site.archiver())
        censuses.append(one)
        if len(censuses) % 6 == 0:
            shown = f"agent {one.agent >> 20} MiB, archiver {one.archiver >> 20} MiB, {one.snapshots} snapshots"
            print(f"minute {minute:.0f}: {one.transfers} transfers, backup {backup:.0f} s, {shown}", flush=True)
        if len(censuses) % 15 == 0:
            print(f"minute {minute:.0f}: files { ({k: n for k, n in by_folder().items() if n}) }", flush=True)
    return censuses


def may_purge() -> None:
    """Grant zsnapdb's account the right to remove binlogs."""
    is_mysql = Path("/etc/lab-flavour").read_text().strip() == "mysql"
    with ledger.connect(SOCKET, "root", "", None) as root, root.cursor() as cursor:
        cursor.execute(f"GRANT {'BINLOG_ADMIN' if is_mysql else 'BINLOG ADMIN'} ON *.* TO zsnapdb@localhost")


def left_over() -> list[str]:
    """Return the leftovers after the end of the agent and one more backup: holds, clones, processes.

    The end of the agent interrupts a backup, whose snapshots stay held. The next backup continues it or releases them.
    """
    must("zsnapdb", "backup", timeout=600)
    snapshots = must("zfs", "list", "-H", "-t", "snapshot", "-o", "name").split()
    holds = must("zfs", "holds", "-H", *snapshots).splitlines()
    clones = json.loads(must("zsnapdb", "clone", "list", "--json"))["clones"]
    processes = [line for line in must("ps", "-eo", "args").splitlines() if "-m zsnapdb" in line]
    kinds = (("hold", holds), ("clone", clones), ("process", processes))
    return [f"{what} left: {one}" for what, found in kinds for one in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=5.0, help="transfers a second of each of two workers")
    options = parser.parse_args()
    patient = CONFIG.read_text().replace("[instance.main.server]\n", '[instance.main.server]\nstart_timeout = "10m"\n')
    CONFIG.write_text(patient + SETTINGS)
    add_innochecksum()
    ledger.set_up(SOCKET)
    may_purge()
    must("zsnapdb", "backup")
    load = ledger.Load(SOCKET, workers=2, rate=options.rate)
    load.start()
    site, runs = Site(Path("/run/hour-said")), Runs(Records(STATE))
    site.start_agent()
    clones = Clones()
    censuses = live(options.minutes, site, load, runs)
    clones.end()
    load.stop()
    assert site.agent is not None
    most = memory(site.agent.pid, "VmHWM")
    site.agent.terminate()
    code = site.agent.wait(120)
    grown = changes(censuses)
    wrong = [change.problem for change in grown if change.problem]
    wrong += [f"the agent had {most >> 20} MiB"] * (most >= LIMIT) + [f"the agent ended with {code}"] * (code != 0)
    wrong += [*left_over(), *clones.failed, *runs.failed]
    for change in grown:
        print(f"{change.name:<24}{change.middle:>14.2f}{change.end:>14.2f}  {change.problem or 'right'}")
    print(f"the agent had at most {most / (1 << 20):.1f} MiB; runs: {runs.count}; clones: {clones.made}")
    document = {"censuses": [asdict(one) for one in censuses], "most": most, "runs": runs.count, "wrong": wrong}
    Path("/out/campaign.json").write_text(json.dumps(document, indent=1))
    flavour = Path("/etc/lab-flavour").read_text().strip()
    print(f"{flavour}: {options.minutes:g} minutes, {'; '.join(wrong) or 'nothing leaked, nothing became slower'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
