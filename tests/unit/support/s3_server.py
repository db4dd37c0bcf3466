"""A real S3 server with users and policies: versitygw, which the lab builds. It runs on the machine itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from zsnapdb.config.repository import RepositorySettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONFIGS = Path(__file__).parents[3] / "configs"
BUCKET = "my-backups"
"""The bucket of the shipped policies; their prefix is `production/`."""
PREFIX = "production/"
_ROOT = "root"
_SECRET = "not-so-secret"


def program() -> Path:
    """Return the server's program. The test is skipped if the machine has none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folders = [Path(os.environ.get("ZSNAPDB_LAB_CACHE") or cache / "zsnapdb-lab"), Path("/opt")]
    for folder in folders:
        for file in (*sorted(folder.glob("s3-*/versitygw")), *folder.glob("s3/versitygw")):
            return file
    installed = shutil.which("versitygw")
    if installed is None:
        pytest.skip("there is no versitygw here: python3 tests/lab build")
    return Path(installed)


def statements(*policies: str, user: str) -> list[dict[str, Any]]:
    """Return the statements of shipped policies for a user, as those of a bucket policy.

    versitygw does not support the condition `s3:if-none-match`, and refuses policies with it. Such statements only
    deny, and are left out.
    """
    rows = [row for name in policies for row in json.loads((CONFIGS / name).read_text())["Statement"]]
    left_out = [row for row in rows if "s3:if-none-match" in json.dumps(row.get("Condition", {}))]
    assert all(row["Effect"] == "Deny" for row in left_out)
    return [{**row, "Sid": f"{user}{row['Sid']}", "Principal": {"AWS": [user]}} for row in rows if row not in left_out]


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket, which has versions and locks."""

    folder: Path
    port: int
    program: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add_user(self, user: str) -> Path:
        """Create a user without rights. Return its credentials file."""
        admin = ["admin", "--access", _ROOT, "--secret", _SECRET, "--endpoint-url", self.endpoint]
        account = ["create-user", "--access", user, "--secret", f"{user}-secret", "--role", "user"]
        subprocess.run([self.program, *admin, *account], check=True, capture_output=True)
        return self._credentials(user, f"{user}-secret")

    def _credentials(self, user: str, secret: str) -> Path:
        file = self.folder / f"{user}.credentials"
        file.write_text(f"[default]\naws_access_key_id = {user}\naws_secret_access_key = {secret}\n")
        file.chmod(0o600)
        return file

    def allow(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set the statements as the bucket's policy."""
        policy = json.dumps({"Version": "2012-10-17", "Statement": rows})
        self.client().put_bucket_policy(Bucket=BUCKET, Policy=policy)

    def client(self, user: str | None = None) -> S3Client:
        """Return a client of a user, or of the bucket's owner."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=user or _ROOT,
            aws_secret_access_key=f"{user}-secret" if user else _SECRET,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def settings(self, user: str | None = None, **more: Any) -> RepositorySettings:
        """Return the repository settings of the shipped policies for a user or the bucket's owner."""
        name, secret = (user, f"{user}-secret") if user else (_ROOT, _SECRET)
        return RepositorySettings.model_validate(
            {
                "url": f"s3://{BUCKET}/{PREFIX.rstrip('/')}",
                "s3": {
                    "endpoint": self.endpoint,
                    "region": "us-east-1",
                    "addressing": "path",
                    "credentials_file": self._credentials(name, secret),
                },
                "patience": 0,
                **more,
            }
        )


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server for the block. Afterwards its process and files are removed."""
    found = program()
    with tempfile.TemporaryDirectory(prefix="s3-", dir="/var/tmp") as name:
        folder = Path(name)
        for part in ("accounts", "versions", "buckets"):
            (folder / part).mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = [str(found), "--port", f"127.0.0.1:{port}", "--quiet", "--iam-dir", str(folder / "accounts")]
        argv += ["--iam-cache-disable", "posix"]
        argv += ["--versioning-dir", str(folder / "versions"), str(folder / "buckets")]
        environment = {**os.environ, "ROOT_ACCESS_KEY": _ROOT, "ROOT_SECRET_KEY": _SECRET}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            server = S3Server(folder, port, found)
            _wait(server, process)
            server.client().create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
            yield server
        finally:
            process.kill()
            process.wait()


def _wait(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers. A refused connection is repeated while the server runs."""
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError((server.folder / "log").read_text(errors="replace"))
