"""In the guest: how long the tests of the sample project take with resets of clones, beside truncated tables.

`sample_project.py SIZES ROUNDS` (MiB, separated by commas) writes /out/sample_project.json. The two ways take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pymysql

SOCKET = "/run/mysqld/mysqld.sock"
PROJECT = Path("/tmp/project")
TRUNCATING = Path(__file__).with_name("truncating_conftest.py")
WAYS = ("reset", "truncate")
TESTS = 200


def ask(statement: str) -> None:
    with pymysql.connect(unix_socket=SOCKET, user="root", autocommit=True) as connection:
        connection.cursor().execute(statement)


def make(size: int) -> None:
    """Make the shop anew with so many MiB, in a snapshot set of which the clones are."""
    ask("DROP DATABASE IF EXISTS shop")
    ask("CREATE DATABASE shop")
    url = f"mysql+pymysql://root@localhost/shop?unix_socket={SOCKET}"
    subprocess.run([sys.executable, "make_shop.py", url, str(size)], cwd=PROJECT, check=True)
    subprocess.run(["zsnapdb", "snapshot", "main"], check=True, stdout=subprocess.DEVNULL)


def run(way: str) -> dict[str, object]:
    """Run all tests on four workers, and return how long that took, and each test without the making of the clone."""
    shutil.copy(TRUNCATING if way == "truncate" else PROJECT / "own_conftest.py", PROJECT / "tests" / "conftest.py")
    report = PROJECT / "report.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-n", "4", "-p", "zsnapdb.client.pytest_plugin"]
    words += ["-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_duration_report=total"]
    began = time.monotonic()
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, env=dict(os.environ))
    wall = time.monotonic() - began
    if done.returncode != 0 or f"{TESTS} passed" not in done.stdout:
        raise SystemExit(done.stdout + done.stderr)
    seconds = sorted(float(case.get("time", 0)) for case in ET.parse(report).iter("testcase"))
    return {"way": way, "wall": wall, "median": seconds[len(seconds) // 2]}


def main() -> None:
    shutil.copytree("/checkout/docs/sample-project", PROJECT)
    shutil.copy(PROJECT / "tests" / "conftest.py", PROJECT / "own_conftest.py")
    samples = []
    for size in map(int, sys.argv[1].split(",")):
        make(size)
        for _ in range(int(sys.argv[2])):
            for way in WAYS:
                sample = {"size": size, **run(way)}
                print(f"{size:>6} MiB  {way:<8}  {sample['wall']:7.1f} s  a test {sample['median']:.3f} s", flush=True)
                samples.append(sample)
    Path("/out/sample_project.json").write_text(json.dumps(samples))


main()
