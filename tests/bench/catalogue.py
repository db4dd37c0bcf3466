"""Measures list, prune --plan and the choice of a base with ten thousand backups, cold and warm.

    python3 tests/bench/catalogue.py [--backups N] [--store file,versitygw,moto] [--json FILE]

Makes a repository with N manifests (a full backup a week, hourly increments, chunk tables as those of a 40 GiB server;
the chunks themselves are left out but for one of each backup) in a folder and on local S3 servers, and times what a
command does after its start. Cold: nothing is cached on this host, every manifest is read. Warm: the cache of the run
before. It runs by itself; no guest is needed. moto, a simulator in Python, takes seconds for the listings alone; it is
there to compare.
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
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from zsnapdb.store.base import Store

LIMIT = 2.0
"""Seconds that each of them may take, warm."""


@dataclass(frozen=True)
class Timing:
    """The time of one command in one store: wall seconds, and CPU seconds of the process when warm."""

    store: str
    what: str
    cold: float
    warm: float
    warm_cpu: float


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
    from zsnapdb.store.open import open_store

    return open_store(parse(configuration(url, settings), "bench").repository["bench"])


def make_bucket(settings: str) -> None:
    """Create the bucket on the server that the settings name."""
    import boto3

    store = tomllib.loads(settings)["s3"]
    credentials = configparser.ConfigParser()
    credentials.read(store["credentials_file"])
    key = credentials["default"]
    boto3.client(
        "s3",
        endpoint_url=store["endpoint"],
        region_name=store["region"],
        aws_access_key_id=key["aws_access_key_id"],
        aws_secret_access_key=key["aws_secret_access_key"],
    ).create_bucket(Bucket="backups")


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


def measure(store: str, config: Path, cache: Path) -> list[Timing]:
    """Time each command cold once and warm three times (the fastest counts), each in a new process."""
    timings = []
    for what in ("list", "prune-plan", "base"):
        shutil.rmtree(cache, ignore_errors=True)
        cold, _ = once(what, config, cache)
        warm, cpu = min(once(what, config, cache) for _ in range(3))
        timings.append(Timing(store, what, round(cold, 2), round(warm, 2), round(cpu, 2)))
        print(f"{store:<10} {what:<11} cold {cold:6.2f} s   warm {warm:5.2f} s ({cpu:.2f} s of CPU)", flush=True)
    return timings


def once(what: str, config: Path, cache: Path) -> tuple[float, float]:
    """Run one command in a new process; return its wall and CPU seconds, with the start of Python."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, __file__, "--run", what, "--config", str(config), "--cache", str(cache)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{what}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(what: str, config: Path, cache: Path) -> None:
    """Do what the command does, without its queries to ZFS and the server: neither exists here."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import Host
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.repository import local_leftovers, prune
    from zsnapdb.jobs.repository.inventory import Inventory, InventoryEntry
    from zsnapdb.planning.chain import choose_base
    from zsnapdb.report.repository.list import InventoryView
    from zsnapdb.report.repository.prune import PrunePlanView

    instance = replace(Instance.of(load(config), "main"), host=Host(cache=cache))
    if what == "prune-plan":
        print(PrunePlanView(prune.plan(instance, local=local_leftovers.NOTHING_LOCAL)).text())
        return
    catalogue = instance.summaries(instance.open_repository())
    if what == "list":
        entries = tuple(InventoryEntry(backup, False) for backup in catalogue.backups)
        print(InventoryView(Inventory(entries, ())).text())
        return
    newest = catalogue.backups[-1]
    plan = choose_base(
        catalogue.backups,
        {volume.role: {volume.guid} for volume in newest.volumes},
        [newest.volumes[0].send_flags],
        now=datetime.now(UTC),
    )
    assert plan.base is newest
    print(plan.reasons)


def stores(
    names: list[str], folder: Path
) -> Iterator[tuple[str, str, str, Callable[[], contextlib.AbstractContextManager[None]]]]:
    """Yield name, address and settings of each store in `names`, and a context that runs its server."""
    credentials = folder / "credentials"
    credentials.write_text("[default]\naws_access_key_id = zsnapdb\naws_secret_access_key = zsnapdb-secret\n")
    credentials.chmod(0o600)
    for name in names:
        if name == "file":
            (folder / "file").mkdir()
            yield name, f"file://{folder / 'file'}", "", contextlib.nullcontext
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
        yield name, "s3://backups/bench", settings, functools.partial(server, argv, port, env)


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
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run, options.config, options.cache)
        return 0
    elsewhere = inside()
    if elsewhere is not None:
        return elsewhere
    timings: list[Timing] = []
    with tempfile.TemporaryDirectory(prefix="zsnapdb-bench-") as top:
        folder = Path(top)
        for name, url, settings, running in stores(options.store.split(","), folder):
            with running():
                if url.startswith("s3:"):
                    make_bucket(settings)
                began = time.monotonic()
                total = fill(url, settings, options.backups)
                print(
                    f"{name}: {options.backups} backups, {total / 2**20:.0f} MiB of manifests, written in"
                    f" {time.monotonic() - began:.0f} s",
                    flush=True,
                )
                config = folder / f"{name}.toml"
                config.write_text(configuration(url, settings))
                timings += measure(name, config, folder / "cache")
    slow = [t for t in timings if t.warm > LIMIT]
    print(
        f"limit {LIMIT} s warm: "
        + ("; ".join(f"{t.what} in {t.store} takes {t.warm} s" for t in slow) or "kept by all")
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(t) for t in timings], indent=1) + "\n")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
