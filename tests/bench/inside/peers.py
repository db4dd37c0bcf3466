"""Measures in a guest a full backup of one server's two datasets by zsnapdb, zfs_uploader and zfsbackup-go.

`peers.py MEBIBYTES ROUNDS`.

The server is up and idle. Each tool writes to a place of its own in the guest's S3 server, which is empty before. What
is measured: seconds, processor seconds and peak memory of the tool with all processes it starts (`zfs send` is one for
each of them), bytes stored. Writes /out/bench.json.
"""

from __future__ import annotations

import configparser
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import boto3

from tests.lab.inside import ledger

SOCKET = "/run/mysqld/mysqld.sock"
ENDPOINT = "http://127.0.0.1:7070"
DATASETS = ("tank/mysql", "tank/mysql/data")
CREDENTIALS = Path("/etc/zsnapdb/credentials")
ZFSBACKUP = Path("/out/peers/zfsbackup-go")
PYTHON = "/opt/venv/bin/python"


def keys() -> tuple[str, str]:
    parser = configparser.ConfigParser()
    parser.read(CREDENTIALS)
    section = parser[parser.sections()[0]]
    return section["aws_access_key_id"], section["aws_secret_access_key"]


def store() -> Any:
    key, secret = keys()
    return boto3.client(
        "s3", endpoint_url=ENDPOINT, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret
    )


def fill(mebibytes: int) -> None:
    """Give the server a table of rows that look like rows: half noise, half the same words."""
    noise = random.Random(7)
    words = "pending shipped returned cancelled customer order invoice " * 4
    with ledger.connect(SOCKET, "root", "", None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("CREATE TABLE bench.t (id INT AUTO_INCREMENT PRIMARY KEY, k INT, body VARCHAR(500), KEY (k))")
        for _ in range(mebibytes * 4):
            cursor.executemany(
                "INSERT INTO bench.t (k, body) VALUES (%s, %s)",
                [(noise.randrange(1 << 20), noise.randbytes(100).hex() + words) for _ in range(600)],
            )
    subprocess.run(["zpool", "sync"], check=True)


def measured(argv: Sequence[str], env: Mapping[str, str]) -> tuple[float, float, int]:
    """Run a command; return seconds, processor seconds and peak bytes of the largest of its processes."""
    began = time.monotonic()
    with open("/tmp/peer.log", "w+b") as log:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env}, cwd="/tmp"
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        if status != 0:
            log.seek(0)
            raise RuntimeError(f"{argv[0]} … ended with status {status}: {log.read()[-3000:].decode(errors='replace')}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def zsnapdb(prefix: str, more: str = "") -> list[tuple[list[str], dict[str, str]]]:
    config = Path(f"/tmp/{prefix}.toml")
    config.write_text(
        Path("/etc/zsnapdb/zsnapdb.toml").read_text().replace("s3://backups/lab", f"s3://backups/{prefix}") + more
    )
    return [(["zsnapdb", "backup"], {"ZSNAPDB_CONFIG": str(config)})]


def zsnapdb_auto(prefix: str) -> list[tuple[list[str], dict[str, str]]]:
    """As it chooses by itself between plain streams and blocks as they lie in the pool."""
    return zsnapdb(prefix, '\n[repository.s3.stream]\nsend = "auto"\n')


def zfs_uploader(prefix: str) -> list[tuple[list[str], dict[str, str]]]:
    key, secret = keys()
    lines = [
        "[DEFAULT]",
        "bucket_name = backups",
        f"access_key = {key}",
        f"secret_key = {secret}",
        "region = us-east-1",
        f"endpoint = {ENDPOINT}",
    ]
    lines += [f"prefix = {prefix}", *(f"[{dataset}]" for dataset in DATASETS)]
    config = Path(f"/tmp/{prefix}.cfg")
    config.write_text("\n".join(lines) + "\n")
    argv = [PYTHON, "-m", "zfs_uploader", "--config-path", str(config), "--log-path", f"/tmp/{prefix}.log", "backup"]
    return [(argv, {"PYTHONPATH": "/out/peers/python"})]


def zfsbackup(prefix: str) -> list[tuple[list[str], dict[str, str]]]:
    key, secret = keys()
    env = {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "AWS_S3_CUSTOM_ENDPOINT": ENDPOINT,
        "HOME": "/tmp",
    }
    subprocess.run(["zfs", "snapshot", *(f"{dataset}@{prefix}" for dataset in DATASETS)], check=True)
    common = [str(ZFSBACKUP), "send", "--full", "--workingDirectory", f"/tmp/{prefix}"]
    return [([*common, dataset, f"s3://backups/{prefix}"], env) for dataset in DATASETS]


def main() -> None:
    fill(int(sys.argv[1]))
    tools = {"zsnapdb": zsnapdb, "zsnapdb_auto": zsnapdb_auto, "zfs_uploader": zfs_uploader}
    if ZFSBACKUP.exists():
        tools["zfsbackup_go"] = zfsbackup
    samples = []
    for number in range(int(sys.argv[2])):
        for name, commands in tools.items():
            prefix = f"{name.replace('_', '-')}-{number}"
            parts = [measured(argv, env) for argv, env in commands(prefix)]
            pages = store().get_paginator("list_objects_v2").paginate(Bucket="backups", Prefix=prefix)
            stored = sum(item["Size"] for page in pages for item in page.get("Contents", []))
            sample = {
                "tool": name,
                "wall": sum(p[0] for p in parts),
                "cpu": sum(p[1] for p in parts),
                "memory": max(p[2] for p in parts),
                "stored": stored,
            }
            samples.append(sample)
            print(sample, flush=True)
    size = sum(
        int(
            subprocess.run(
                ["zfs", "get", "-Hp", "-o", "value", "logicalreferenced", d], capture_output=True, text=True
            ).stdout
        )
        for d in DATASETS
    )
    Path("/out/bench.json").write_text(json.dumps({"plain": size, "samples": samples}))


if __name__ == "__main__":
    main()
