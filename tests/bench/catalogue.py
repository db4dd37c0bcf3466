"""Measures what a command with ten thousand backups in the repository takes beside the same one with ten.

    python3 tests/bench/catalogue.py [--backups N] [--store file,versitygw,moto] [--rounds N] [--json FILE]

`list`, `status`, `prune --plan`, and what a backup does with the repository before it begins: it lists, chooses a base,
and compares with the record of what this host stored. Each is a process of its own that does what the command does, but
for its questions to ZFS and to a server: neither exists here. Cold: nothing is cached on this host, every manifest is
read. Warm: the cache of the run before. The floor: a program that lists as many keys with boto3, and does nothing else.

The manifests are those of a server of 40 GiB: a full backup a week, hourly increments; the chunks themselves are left
out but for one of each backup. It runs by itself; no guest is needed. moto, a simulator in Python, takes seconds for
the listings alone; it is there to compare.
"""

from __future__ import annotations

import argparse
import configparser
import contextlib
import functools
import importlib.util
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import Figure

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.store.base import Store

GOAL = 1.3
"""How many times the processor seconds with ten backups each of them may take, warm."""
FEW = 10
COMMANDS = ("list", "status", "prune-plan", "backup")


@dataclass(frozen=True)
class Used:
    """What one process took: seconds, and processor seconds."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Place:
    """A repository with so many backups: its configuration, and the folder of the cache and the record of this host."""

    config: Path
    folder: Path
    backups: int


def fill(url: str, settings: str, count: int) -> int:
    """Write the repository; return the bytes of its manifests."""
    from tests.bench.manifests import manifests

    store, prefix = opened(url, settings)
    store.put(f"{prefix}zsnapdb.json", b'{"format": 1, "id": "bench", "recipients": []}')

    def write(item: tuple[str, bytes]) -> int:
        backup_id, body = item
        store.put(f"{prefix}main/chunks/{backup_id}/data/00000001", b"x")
        store.put(f"{prefix}main/manifests/{backup_id}.json", body)
        return len(body)

    total = 0
    with ThreadPoolExecutor(8) as pool:
        batch: list[tuple[str, bytes]] = []
        for item in manifests(count):
            batch.append(item)
            if len(batch) == 64:
                total += sum(pool.map(write, batch))
                batch.clear()
        total += sum(pool.map(write, batch))
    return total


def configuration(url: str, settings: str) -> str:
    """Return a configuration with one instance that backs up to the repository."""
    return f"""
[instance.main]
socket = "/nonexistent"
volumes = {{ data = "tank/mysql/data", parent = "tank/mysql" }}
repository = "bench"
[instance.main.keep]
last = 48
daily = 30
weekly = 26
monthly = 12
[repository.bench]
url = "{url}"
{settings}
"""


def opened(url: str, settings: str) -> tuple[Store, str]:
    from zsnapdb.config.settings import parse
    from zsnapdb.store.layers import open_store

    return open_store(parse(configuration(url, settings), "bench").repository["bench"])


def make_bucket(settings: str) -> None:
    """Create the bucket on the server that the settings name."""
    client(tomllib.loads(settings)["s3"]).create_bucket(Bucket="backups")


def client(store: dict[str, str]) -> S3Client:
    """Return boto3's client for these settings of a store."""
    import boto3

    credentials = configparser.ConfigParser()
    credentials.read(store["credentials_file"])
    key = credentials["default"]
    return boto3.client(
        "s3",
        endpoint_url=store["endpoint"],
        region_name=store["region"],
        aws_access_key_id=key["aws_access_key_id"],
        aws_secret_access_key=key["aws_secret_access_key"],
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(argv: list[str], port: int, env: dict[str, str]) -> Iterator[None]:
    """Run a local S3 server until the block ends."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **env}
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{argv[0]} did not come up")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)


def measure(store: str, many: Place, few: Place, rounds: int) -> dict[str, Figure]:
    """Time each command cold once, and warm in turns with many and with few backups. Return the figures."""
    figures: dict[str, Figure] = {}

    def median(samples: list[Used]) -> Used:
        return Used(*(statistics.median(getattr(one, name) for one in samples) for name in ("wall", "processor")))

    bare = median([once("bare", many) for _ in range(rounds)]) if store != "file" else None
    for place in (many, few):
        once("record", place)
    for what in COMMANDS:
        shutil.rmtree(many.folder / "cache", ignore_errors=True)
        cold = once(what, many)
        once(what, few)
        samples = [(once(what, many), once(what, few)) for _ in range(rounds)]
        warm, least = median([one for one, _ in samples]), median([one for _, one in samples])
        ratio = warm.processor / least.processor
        print(
            f"{store:<10} {what:<11} cold {cold.wall:6.2f} s   warm {warm.wall:5.2f} s ({warm.processor:.2f} s of a"
            f" processor; {least.processor:.2f} s with {few.backups} backups)   ratio {ratio:.2f}, goal <= {GOAL}",
            flush=True,
        )
        name = f"{store}_{what.replace('-', '_')}"
        figures[f"{name}_cold"] = Figure(cold.wall, "s")
        figures[f"{name}_warm"] = Figure(warm.wall, "s")
        figures[f"{name}_processor"] = Figure(warm.processor, "s")
        figures[f"{name}_ratio"] = Figure(ratio, "x", f"<= {GOAL}")
        if bare is not None:
            figures[f"{name}_to_bare_listing"] = Figure(warm.processor / bare.processor, "x")
    if bare is not None:
        print(f"{store:<10} {'bare listing':<11} warm {bare.wall:5.2f} s ({bare.processor:.2f} s of a processor)")
        figures[f"{store}_bare_listing_processor"] = Figure(bare.processor, "s")
    return figures


def once(what: str, place: Place) -> Used:
    """Run one command in a new process; return what it took, with the start of Python."""
    argv = [sys.executable, __file__, "--run", what, "--config", str(place.config), "--folder", str(place.folder)]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{what}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Used(time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def run(what: str, config: Path, folder: Path) -> None:
    """Do what the command does, without its queries to ZFS and the server: neither exists here."""
    if what == "bare":
        print(sum(1 for _ in listed_by_boto3(config)))
        return
    from zsnapdb.cli.process_attributes import collect_rarely

    collect_rarely()
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.jobs.base.instance import Instance

    host = Host(cache=folder / "cache", records=folder / "state" / "stored")
    instance = replace(Instance.of(load(config), "main"), host=host)
    DOING[what](instance)


def list_all(instance: Instance) -> None:
    """Do what `zsnapdb list` does."""
    from zsnapdb.jobs.repository.inventory import Inventory, InventoryEntry
    from zsnapdb.report.repository.list import InventoryView

    catalogue = instance.summaries(instance.open_repository())
    entries = tuple(InventoryEntry(backup, False) for backup in catalogue.backups)
    print(InventoryView(Inventory(entries, ())).text())


def judge(instance: Instance) -> None:
    """Do what `zsnapdb status` does."""
    from zsnapdb.jobs.repository import protection_status
    from zsnapdb.report.repository.protection import StatusView

    state = protection_status.observed(instance)
    assert state.status is not None
    print(StatusView(state.status).text())


def plan_prune(instance: Instance) -> None:
    """Do what `zsnapdb prune --plan` does."""
    from zsnapdb.jobs.repository import prune, prune_facts
    from zsnapdb.report.repository.prune import PrunePlanView

    print(PrunePlanView(prune.plan(instance, local=prune_facts.NOTHING_LOCAL)).text())


def plan_backup(instance: Instance) -> None:
    """Do what a backup does with the repository before it begins: it chooses its base, and compares with the record."""
    from zsnapdb.jobs.record import host_backup_record
    from zsnapdb.planning.backup_chain import choose_base
    from zsnapdb.repository.backup_marks import unfinished
    from zsnapdb.repository.verifications import known_damage

    repository = instance.open_repository()
    known = instance.summaries(repository)
    unfinished(repository, instance.name, known.listed)
    known_damage(repository, instance.name).of(backup.backup_id for backup in known.backups)
    checked = host_backup_record.check(instance, repository, known.backups, known.unread, is_writing=True, seen=[])
    newest = known.backups[-1]
    plan = choose_base(
        known.backups,
        {volume.role: {volume.guid} for volume in newest.volumes},
        [newest.volumes[0].send_flags],
        now=datetime.now(UTC),
        unchosen=checked.unchosen,
    )
    assert plan.base is newest
    assert not checked.findings
    print(plan.reasons)


def record(instance: Instance) -> None:
    """Record all backups of the repository as stored by this host."""
    from zsnapdb.jobs.record import host_backup_record
    from zsnapdb.jobs.record.record_file import HostRecord

    repository = instance.open_repository()
    stored = tuple(
        host_backup_record._recorded(backup, backup.digest) for backup in instance.summaries(repository).backups
    )
    known = HostRecord.of(instance, repository)
    assert known is not None
    known.change_backups(lambda before: before.model_copy(update={"stored": stored}))


DOING: dict[str, Callable[[Instance], None]] = {
    "list": list_all,
    "status": judge,
    "prune-plan": plan_prune,
    "backup": plan_backup,
    "record": record,
}


def listed_by_boto3(config: Path) -> Iterator[str]:
    """Yield the keys of all manifests, as a program lists them that does nothing else."""
    repository = tomllib.loads(config.read_text())["repository"]["bench"]
    bucket, _, prefix = repository["url"].removeprefix("s3://").partition("/")
    pages = (
        client(repository["s3"])
        .get_paginator("list_objects_v2")
        .paginate(Bucket=bucket, Prefix=f"{prefix}/main/manifests/")
    )
    for page in pages:
        for item in page["Contents"]:
            yield item["Key"]


def stores(
    names: list[str], folder: Path
) -> Iterator[tuple[str, str, str, Callable[[], contextlib.AbstractContextManager[None]]]]:
    """Yield name, address and settings of each store in `names`, and a context that runs its server."""
    credentials = folder / "credentials"
    credentials.write_text("[default]\naws_access_key_id = zsnapdb\naws_secret_access_key = zsnapdb-secret\n")
    credentials.chmod(0o600)
    for name in names:
        if name == "file":
            yield name, f"file://{folder}", "", contextlib.nullcontext
            continue
        port = free_port()
        settings = (
            f's3 = {{ endpoint = "http://127.0.0.1:{port}", region = "us-east-1", addressing = "path",'
            f' credentials_file = "{credentials}" }}\n'
        )
        (folder / name).mkdir()
        if name == "moto":
            argv, env = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], {}
        else:
            argv = [versitygw(), "--port", f"127.0.0.1:{port}", "posix", str(folder / name)]
            env = {"ROOT_ACCESS_KEY": "zsnapdb", "ROOT_SECRET_KEY": "zsnapdb-secret"}
        yield name, "s3://backups", settings, functools.partial(server, argv, port, env)


def versitygw() -> str:
    """Return the S3 server that the lab built."""
    from tests.lab.cache import Cache

    programs = [*sorted(Cache.default().top.glob("s3-*/versitygw")), shutil.which("versitygw")]
    if not programs or programs[0] is None:
        raise SystemExit("there is no versitygw: build the lab, or leave it out with --store file,moto")
    return str(programs[0])


def inside() -> int | None:
    """Run in the lab's root, a chroot on the same kernel, if this machine lacks what zsnapdb needs.

    Return its exit status.
    """
    if all(
        importlib.util.find_spec(name)
        for name in ("blake3", "zstandard", "pydantic", "boto3", "moto", "pyrage", "cryptography")
    ):
        return None
    from tests.lab import suite
    from tests.lab.guest import Lab

    return subprocess.run(suite._inside(Lab.ready(), ["/opt/venv/bin/python", *sys.argv])).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=10_000)
    parser.add_argument("--store", default="file,versitygw")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run, options.config, options.folder)
        return 0
    elsewhere = inside()
    if elsewhere is not None:
        return elsewhere
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="zsnapdb-bench-") as top:
        folder = Path(top)
        for name, url, settings, running in stores(options.store.split(","), folder):
            with running():
                if url.startswith("s3:"):
                    make_bucket(settings)
                many, few = (
                    filled(f"{url}/{name}-{count}", settings, count, folder / f"{name}-host-{count}")
                    for count in (options.backups, FEW)
                )
                figures |= measure(name, many, few, options.rounds)
    if options.json:
        named = {name: figure.document() for name, figure in figures.items()}
        options.json.write_text(json.dumps({"figures": named}, indent=1) + "\n")
    return 0


def filled(url: str, settings: str, count: int, host: Path) -> Place:
    """Make a repository with so many backups, and the folder of a host that uses it."""
    if url.startswith("file:"):
        Path(url.removeprefix("file://")).mkdir()
    host.mkdir()
    config = host / "zsnapdb.toml"
    config.write_text(configuration(url, settings))
    began = time.monotonic()
    total = fill(url, settings, count)
    print(
        f"{url}: {count} backups, {total / 2**20:.0f} MiB of manifests, in {time.monotonic() - began:.0f} s", flush=True
    )
    return Place(config, host, count)


if __name__ == "__main__":
    raise SystemExit(main())
