"""Compares ways to move the bodies of chunks between a process and an S3 server: ours, and what libraries offer.

    python3 tests/bench/transports.py [--sizes 1.3,8] [--rounds N] [--json FILE]

Each contender stores so many GiB as objects of BODY bytes with two threads, and reads them into memory again. Each runs
in a process of its own. The figures are wall and processor seconds next to those of zsnapdb's own store. Only zsnapdb
sends the SHA-256 of each body, which the server checks, and a timeout for each request; the hashing is not counted.
The library below `boto3[crt]` moves files, so it writes to and reads from a file system in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.figures import Figure, report
from tests.bench.s3_server import BUCKET, Server, serve

BODY = 14 << 20
"""The stored size of a chunk of 32 MiB of InnoDB data at the level of the throughput benchmark."""
THREADS = 2
WAYS = ("zsnapdb", "boto3", "obstore", "crt")
MEMORY = Path("/dev/shm")

Move = Callable[[str], object]


def body() -> bytes:
    """Return the bytes of each object, always the same."""
    return random.Random(58).randbytes(BODY)


def zsnapdb() -> tuple[Move, Move]:
    """Return how a backup stores a chunk, and how a restore reads one."""
    from zsnapdb.config.repository import RepositorySettings
    from zsnapdb.store.layers import open_store

    store, _ = open_store(RepositorySettings.model_validate(json.loads(os.environ["BENCH_REPOSITORY"])))
    data = body()
    digest, rooms = hashlib.sha256(data).hexdigest(), [memoryview(bytearray(BODY)) for _ in range(THREADS)]

    def read(key: str) -> None:
        room = rooms.pop()
        assert store.read_into(f"ours/{key}", room) == BODY
        rooms.append(room)

    return lambda key: store.put(f"ours/{key}", data, sha256=digest), read


def client() -> Any:
    """Return a client of boto3 as its documentation makes one."""
    import boto3
    from botocore.config import Config

    config = Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
    return boto3.client("s3", endpoint_url=os.environ["RCLONE_S3_ENDPOINT"], config=config)


def boto3() -> tuple[Move, Move]:
    """Return boto3's requests for one object."""
    s3, data = client(), body()
    return (
        lambda key: s3.put_object(Bucket=BUCKET, Key=key, Body=data),
        lambda key: len(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()),
    )


def obstore() -> tuple[Move, Move]:
    """Return the requests of the library that zsnapdb uses for Azure and Google."""
    import obstore as library
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=os.environ["RCLONE_S3_ENDPOINT"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    data = body()
    return (
        lambda key: library.put(store, key, data, use_multipart=False),
        lambda key: len(memoryview(library.get(store, key).bytes())),
    )


def crt() -> tuple[Move, Move]:
    """Return the transfers of the library below `boto3[crt]`.

    boto3 itself uses it for no endpoint but that of Amazon (`boto3/crt.py` sets none, and always TLS).
    """
    from botocore.session import Session
    from s3transfer.crt import (
        BotocoreCRTCredentialsWrapper,
        BotocoreCRTRequestSerializer,
        CRTTransferManager,
        create_s3_crt_client,
    )

    session, region = Session(), "us-east-1"
    given = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    plain = create_s3_crt_client(region=region, use_ssl=False, crt_credentials_provider=given, part_size=2 * BODY)
    where = {"region_name": region, "endpoint_url": os.environ["RCLONE_S3_ENDPOINT"]}
    manager = CRTTransferManager(plain, BotocoreCRTRequestSerializer(session, where))
    source = MEMORY / f"zsnapdb-bench-{os.getpid()}"
    source.write_bytes(body())

    def read(key: str) -> None:
        # The library renames the file after the transfer is said to be done.
        target = source.with_name(f"{source.name}-{threading.get_ident()}")
        manager.download(BUCKET, key, str(target)).result()

    return lambda key: manager.upload(str(source), BUCKET, key).result(), read


def work(way: str, count: int) -> None:
    """Store and read so many objects. Print wall and processor seconds of both as JSON."""
    store, read = {"zsnapdb": zsnapdb, "boto3": boto3, "obstore": obstore, "crt": crt}[way]()
    figures: list[float] = []
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for move in (store, read):
                list(pool.map(move, ["first"] * THREADS))
                before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
                list(pool.map(move, [f"{number:06d}" for number in range(count)]))
                after = resource.getrusage(resource.RUSAGE_SELF)
                used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                figures += [time.monotonic() - began, used]
    finally:
        for left in MEMORY.glob(f"zsnapdb-bench-{os.getpid()}*"):
            left.unlink()
    print(json.dumps([*figures, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def measure(server: Server, way: str, count: int) -> list[float]:
    """Return wall and processor seconds of storing and of reading, and the memory in MiB, of one process."""
    server.empty()
    argv = [sys.executable, str(Path(__file__).resolve()), "--work", way, str(count)]
    done = subprocess.run(argv, env=server.environment(), stdout=subprocess.PIPE, check=True)
    told: list[float] = json.loads(done.stdout.splitlines()[-1])
    return told


def compare(server: Server, gib: float, rounds: int) -> dict[str, Figure]:
    """Print and return the figures of each contender. They take turns."""
    count = max(1, round(gib * 2**30 / BODY))
    runs: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            runs[way].append(measure(server, way, count))
    medians = {way: [statistics.median(column) for column in zip(*told, strict=True)] for way, told in runs.items()}
    figures: dict[str, Figure] = {}
    for way, (put, put_cpu, get, get_cpu, memory) in medians.items():
        print(
            f"{gib:4.1f} GiB  {way:<8} store {put:6.2f} s, {put_cpu:6.2f} s of processor   read {get:6.2f} s,"
            f" {get_cpu:6.2f} s of processor   {memory:4.0f} MiB",
            flush=True,
        )
        if way != "zsnapdb":
            names = ("store_wall", "store_processor", "read_wall", "read_processor")
            for name, ours, other in zip(names, medians["zsnapdb"], (put, put_cpu, get, get_cpu), strict=False):
                figures[f"{gib:g}gib_{name}_{way}"] = Figure(ours / other, "ratio")
    return figures


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1.3", help="GiB, separated by commas (default: 1.3)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.work:
        work(options.work[0], int(options.work[1]))
        return 0
    from tests.bench.tools import tools
    from tests.lab.cache import Cache

    cache = Cache.default()
    figures: dict[str, Figure] = {}
    with serve(tools(cache).server, cache.top) as server:
        for gib in options.sizes.split(","):
            figures |= compare(server, float(gib), options.rounds)
    report(figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
