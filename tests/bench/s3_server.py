"""A local S3 server for benchmarks: versitygw with one empty bucket."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.host import LabError

BUCKET = "bench"
LEVEL = 1
"""The level of zstd, ours and that of the pipelines."""


@dataclass
class Server:
    """A running versitygw with an empty bucket; its data folder is removed with it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    key: str
    secret: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu(self) -> float:
        """Return the processor seconds that the server has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which the contenders reach the server."""
        return {
            **os.environ,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "RCLONE_CONFIG": "/dev/null",
            "RCLONE_S3_PROVIDER": "Other",
            "RCLONE_S3_ENDPOINT": self.url,
            "RCLONE_S3_ACCESS_KEY_ID": self.key,
            "RCLONE_S3_SECRET_ACCESS_KEY": self.secret,
            "RCLONE_S3_REGION": "us-east-1",
            "RCLONE_S3_NO_CHECK_BUCKET": "true",
            "BENCH_REPOSITORY": json.dumps(
                {
                    "url": f"s3://{BUCKET}/ours",
                    "s3": {"endpoint": self.url, "region": "us-east-1", "addressing": "path"},
                    "stream": {"level": LEVEL},
                }
            ),
            "BENCH_LEVEL": str(LEVEL),
        }

    def stored(self) -> int:
        """Return the bytes of all objects."""
        return sum(path.stat().st_size for path in (self.folder / "buckets").rglob("*") if path.is_file())

    def empty(self) -> None:
        """Remove all objects."""
        for path in (self.folder / "buckets" / BUCKET).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def serve(binary: Path, near: Path) -> Iterator[Server]:
    """Run a server for the block; afterwards its process and files are gone."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=near))
    for name in (f"buckets/{BUCKET}", "metadata"):
        (folder / name).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key, secret = "bench", secrets.token_hex(16)
    env = {**os.environ, "ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
    argv = [
        str(binary),
        "--port",
        f"127.0.0.1:{port}",
        "--quiet",
        "posix",
        "--sidecar",
        str(folder / "metadata"),
        str(folder / "buckets"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"versitygw does not answer: {(folder / 'log').read_text(errors='replace')[-500:]}")
            time.sleep(0.05)
        yield Server(folder, port, process, key, secret)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
