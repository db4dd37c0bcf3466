"""Measures commands on repositories of large servers: seconds, memory, requests, and what they cost in a month.

    python3 tests/bench/large.py [--sizes 10GB,200GB,2TB,50TB] [--days N] [--rounds N] [--json FILE]

A repository is metadata with true sizes: manifests with every chunk row, hourly increments, rotated binlogs, and the
newest binlog in segments of a minute. Its chunks have only keys and sizes (`metadata_store.py`), and no request takes
time: with a real store each adds its delay. Each command is a process of its own that does what the command does,
without its questions to ZFS and to a server. `restore --plan` goes as far as the choice of backups and binlogs; the
transactions of the binlogs that decide are made up.

Cold: this host has no cache. Warm: the run before left one. The cost is that of the warm requests at list prices
(`zsnapdb/planning/repository/sizing.py`), as often as RUNS says.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import catalogue
from tests.bench.figures import Figure

if TYPE_CHECKING:
    from tests.bench.large_server import Server
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.planning.repository.sizing import StorePrice

RUNS = {"status": 8640, "list": 30, "prune-plan": 30, "verify-plan": 30, "restore-plan": 30, "backup": 720}
"""How often a command runs in a month: status each five minutes, a backup each hour, the others once a day."""
KINDS = ("GET", "LIST", "PUT")
SCANNED = 2000
"""Invented transactions of a binlog that decides where a restore stops."""
MEMORY_GOAL = 200.0
"""MiB that each of these commands may take at any size."""


@dataclass(frozen=True)
class Used:
    """The cost of one process: seconds, peak memory in MiB, requests by kind, and received bytes."""

    wall: float
    peak: float
    requests: dict[str, int]
    received: int


@dataclass(frozen=True)
class Place:
    """The repository of a server, and the folder of the host that uses it."""

    server: Server
    folder: Path
    objects: int
    stored: int


def make(server: Server, folder: Path) -> Place:
    """Write the repository of a server, and what the host records of it."""
    from tests.bench.large_server import write
    from tests.bench.metadata_store import writer

    store = writer(folder / "store")
    began = time.monotonic()
    write(server, store)
    (folder / "zsnapdb.toml").write_text(catalogue.configuration(f"file://{folder}", ""))
    print(
        f"{server.name}: {server.backups} backups and {server.binlogs} binlogs, {store.objects} objects of"
        f" {store.stored_bytes / 2**40:.2f} TiB, {store.document_bytes / 2**20:.0f} MiB of documents, written in"
        f" {time.monotonic() - began:.0f} s",
        flush=True,
    )
    place = Place(server, folder, store.objects, store.stored_bytes)
    once("record", place)
    return place


def once(what: str, place: Place) -> Used:
    """Run one command in a new process. Return what it took, with the start of Python."""
    target = (place.server.now - timedelta(hours=5, minutes=17)).isoformat()
    argv = [sys.executable, __file__, "--run", what, "--folder", str(place.folder), "--to", target]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True)
    wall = time.monotonic() - began
    if done.returncode != 0:
        raise SystemExit(f"{what} at {place.server.name}: {done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Used(wall, told["peak"], told["requests"], told["received"])


def run(what: str, folder: Path, target: str) -> None:
    """Do what the command does, and print what it took."""
    from tests.bench.metadata_store import MetadataStore
    from zsnapdb.cli.process_attributes import collect_rarely

    collect_rarely()
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.jobs.base.instance import Instance

    store = MetadataStore(folder / "store")
    host = Host(
        cache=folder / "cache", records=folder / "state" / "stored", open_store=lambda settings, tell: (store, "")
    )
    instance = replace(Instance.of(load(folder / "zsnapdb.toml"), "main"), host=host)
    DOING[what](instance, target)
    # The highest memory of getrusage(2) has that of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    print("\n" + json.dumps({"peak": peak, "requests": dict(store.requests), "received": store.received}))


def plan_verify(instance: Instance, target: str) -> None:
    """Do what `zsnapdb verify --plan` does."""
    from zsnapdb.jobs.repository import verify
    from zsnapdb.report.repository.prune import VerifyPlanView

    print(VerifyPlanView(verify.plan(instance, verify.Depth.LISTED)).text())


def plan_restore(instance: Instance, target: str) -> None:
    """Choose the backups and binlogs of a restore to a time, as `zsnapdb restore --plan` does."""
    from zsnapdb.jobs.restore import backup_selection, plan
    from zsnapdb.planning.binlog.route import RouteFile, commit_time
    from zsnapdb.planning.restore.replays import Scanned

    def scan(reader: backup_selection.TransactionReader, binlog: RouteFile) -> Iterator[Scanned]:
        assert binlog.first_commit is not None
        assert binlog.last_commit is not None
        bounds = [binlog.start + (binlog.end - binlog.start) * at // SCANNED for at in range(SCANNED + 1)]
        first, whole = binlog.first_commit, binlog.last_commit - binlog.first_commit
        for number, (start, end) in enumerate(itertools.pairwise(bounds), 1):
            yield Scanned(None, start, end, commit_time(first + whole * number // SCANNED))

    setattr(backup_selection.TransactionReader, "scan", scan)  # noqa: B010
    repository = instance.open_repository()
    decided = plan.decide(instance, repository, plan.RestoreRequest(to=target))
    print(decided.manifest.backup_id, len(decided.chain), len(decided.chosen.choice.files))


def record(instance: Instance, target: str) -> None:
    """Record all backups and binlogs of the repository as stored by this host."""
    from zsnapdb.jobs.base.own_document_digests import documents_of, files_of
    from zsnapdb.jobs.record import own_archived_binlogs
    from zsnapdb.repository.binlog_archive import BinlogArchive

    catalogue.record(instance)
    repository = instance.open_repository()
    archive = BinlogArchive(repository, instance.name).load()
    incarnations = [incarnation.id for incarnation in archive.incarnations]
    own_archived_binlogs.note_archived_files(instance, repository, archive.files, incarnations, archive.lines)
    files_of(instance).begin(documents_of(repository, instance.name, archive))


DOING: dict[str, Callable[[Instance, str], None]] = {
    "status": lambda instance, _: catalogue.judge(instance),
    "list": lambda instance, _: catalogue.list_all(instance),
    "prune-plan": lambda instance, _: catalogue.plan_prune(instance),
    "verify-plan": plan_verify,
    "restore-plan": plan_restore,
    "backup": lambda instance, _: catalogue.plan_backup(instance),
    "record": record,
}


def cost(requests: dict[str, int], price: StorePrice, runs: int) -> float:
    """Return what the requests cost in a month in which they are made so often."""
    thousand = {"PUT": price.put_thousand, "LIST": price.list_thousand, "GET": price.get_thousand}
    return sum(thousand.get(kind, 0.0) * number * runs / 1000 for kind, number in requests.items())


def write_requests(server: Server) -> dict[str, Figure]:
    """Print and return the objects and the requests a month of the jobs that write, by the model of `sizing`.

    One full backup, 90 days of hourly increments, and the archive with an interval of 10 s and of a minute.
    """
    from tests.bench.large_server import BINLOG, CHANGED_SHARE
    from zsnapdb.config.repository import StreamSettings
    from zsnapdb.jobs.repository.sizing import size_workload
    from zsnapdb.planning.binlog.archive_times import RoundTimer
    from zsnapdb.planning.repository.sizing import DAY, PRICES, Workload

    days, binlogs = 90, max(1, server.binlog_a_day // BINLOG)
    increment = server.size * CHANGED_SHARE
    file_chunks = math.ceil(server.binlog_a_day / binlogs / StreamSettings().chunk_size)
    figures: dict[str, Figure] = {}
    for interval in (10, 60):
        load = Workload(
            server.size,
            24 * increment,
            server.binlog_a_day,
            every=DAY / 24,
            full_every=days * DAY,
            pause=RoundTimer(interval).pause,
        )
        price = PRICES["s3"]
        made, one = size_workload(load, (price,)), size_workload(replace(load, size=int(increment)), (price,))
        objects = {
            "full": made.full_objects + 1,
            "increments": days * 24 * (one.full_objects + 1),
            "binlogs": days * binlogs * (file_chunks + 1),
        }
        key = f"{server.name}_written"
        figures |= {f"{key}_{name}": Figure(number, "objects") for name, number in objects.items()}
        figures[f"{key}_{interval}s"] = Figure(made.costs[0].requests, "USD/month")
        print(
            f"{server.name:<6} written, archived each {interval} s: "
            + ", ".join(f"{number} objects of {name}" for name, number in objects.items())
            + f"; {made.requests.put:.0f} PUT a month, s3 ${made.costs[0].requests:.2f}",
            flush=True,
        )
    return figures


def measure(place: Place, rounds: int) -> dict[str, Figure]:
    """Run each command cold once, and then warm. Print and return the figures."""
    from zsnapdb.planning.repository.sizing import PRICES

    name = place.server.name
    figures = {f"{name}_objects": Figure(place.objects, "objects")}
    for store, price in PRICES.items():
        figures[f"{name}_{store}_storage"] = Figure(place.stored / 2**30 * price.gib_month, "USD/month")
    for what in RUNS:
        shutil.rmtree(place.folder / "cache", ignore_errors=True)
        cold = once(what, place)
        warm = [once(what, place) for _ in range(rounds)]
        wall, last = statistics.median(one.wall for one in warm), warm[-1]
        peak = max(one.peak for one in (cold, *warm))
        key = f"{name}_{what.replace('-', '_')}"
        figures |= {
            f"{key}_cold": Figure(cold.wall, "s"),
            f"{key}_warm": Figure(wall, "s"),
            f"{key}_peak": Figure(peak, "MiB", f"<= {MEMORY_GOAL:.0f}"),
            f"{key}_received": Figure(last.received / 2**20, "MiB"),
            f"{key}_cold_get": Figure(cold.requests.get("GET", 0), "requests"),
        }
        figures |= {f"{key}_{kind.lower()}": Figure(last.requests.get(kind, 0), "requests") for kind in KINDS}
        costs = {store: cost(last.requests, price, RUNS[what]) for store, price in PRICES.items()}
        figures |= {f"{key}_{store}": Figure(money, "USD/month") for store, money in costs.items()}
        asked = ", ".join(f"{last.requests.get(kind, 0)} {kind}" for kind in KINDS)
        print(
            f"{name:<6} {what:<13} cold {cold.wall:6.2f} s ({cold.requests.get('GET', 0)} GET)   warm {wall:6.2f} s  "
            f" peak {peak:4.0f} MiB (warm {last.peak:.0f})   {asked}   "
            + "  ".join(f"{store} ${money:.2f}" for store, money in costs.items()),
            flush=True,
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10GB,200GB,2TB,50TB")
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    for hidden in ("--run", "--to"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run, options.folder, options.to)
        return 0
    elsewhere = catalogue.inside()
    if elsewhere is not None:
        return elsewhere
    from tests.bench.large_server import sizes

    figures: dict[str, Figure] = {}
    servers = sizes(options.days)
    for name in options.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="zsnapdb-bench-") as top:
            folder = Path(top) / name
            folder.mkdir()
            figures |= write_requests(servers[name])
            figures |= measure(make(servers[name], folder), options.rounds)
    if options.json:
        named = {name: figure.document() for name, figure in figures.items()}
        options.json.write_text(json.dumps({"figures": named}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
