"""The programs a benchmark compares with, each fetched once into the lab's cache by its ordinary client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cache import Cache, digest
from tests.lab.guest import CHECKOUT
from tests.lab.host import LabError

AWSCLI = "awscli==1.45.*"
RCLONE = "github.com/rclone/rclone@v1.69.3"
ZFS_UPLOADER = "zfs_uploader==0.9.0"
ZFSBACKUP = "github.com/someone1/zfsbackup-go@latest"


@dataclass(frozen=True)
class Tools:
    """A Python with zsnapdb's libraries and the AWS command line, rclone, and versitygw, the S3 server of the lab."""

    python: Path
    aws: Path
    rclone: Path
    server: Path


def _made(cache: Cache, name: str, key: str, make: object) -> Path:
    """Return the folder of the product; `make` fills a new folder, which becomes the product only when complete."""
    folder = cache.product(name, key)
    if not folder.exists():
        cache.forget_older(name, key)
        print(f"fetching {name}, once", file=sys.stderr, flush=True)
        try:
            make(folder)  # type: ignore[operator]
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return folder


def _run(cache: Cache, argv: list[str], env: dict[str, str] | None = None) -> None:
    log = cache.log("bench-tools")
    with log.open("ab") as file:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, **(env or {})}
        )
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))


def tools(cache: Cache) -> Tools:
    """Return the programs, fetching what is missing: Python packages by pip, rclone by go."""
    needed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]

    def python(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        _run(cache, [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *needed])
        # Apart: it pins older versions of the libraries that we use too.
        venv.create(folder / "aws", with_pip=True)
        _run(cache, [str(folder / "aws" / "bin" / "python"), "-m", "pip", "install", "-q", AWSCLI])

    def rclone(folder: Path) -> None:
        _run(cache, ["go", "install", RCLONE], {"GOBIN": str(folder), "CGO_ENABLED": "0"})

    own = _made(cache, "benchpython", digest(*needed, AWSCLI, sys.version), python)
    other = _made(cache, "rclone", digest(RCLONE), rclone)
    programs = list(cache.top.glob("s3-*/versitygw"))
    if not programs:
        raise LabError("the lab was built without Go, so there is no versitygw to measure with")
    return Tools(own / "bin" / "python", own / "aws" / "bin" / "aws", other / "rclone", programs[-1])


def peers(cache: Cache, zfsbackup: Path | None) -> Path:
    """Return a folder with zfs_uploader (`python`, for a PYTHONPATH) and zfsbackup-go, if given or buildable."""

    def make(folder: Path) -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-compile",
            "--target",
            str(folder / "python"),
            ZFS_UPLOADER,
        ]
        _run(cache, pip)
        if zfsbackup is not None:
            shutil.copy(zfsbackup, folder / "zfsbackup-go")
            return
        try:
            _run(cache, ["go", "install", ZFSBACKUP], {"GOBIN": str(folder), "CGO_ENABLED": "0"})
        except LabError as error:
            print(f"zfsbackup-go is not to be had here: {error}", file=sys.stderr)

    return _made(cache, "benchpeers", digest(ZFS_UPLOADER, ZFSBACKUP, str(zfsbackup)), make)
