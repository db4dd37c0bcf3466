"""Tests of users get a clone for their session and clean data for each test; a killed session leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .in_guest import Lab, everything

pytestmark = [pytest.mark.usefixtures("first"), pytest.mark.any_server]

TESTS = """
import os, pathlib, time
import pymysql, pytest

def ask(clone, statement):
    login = {"host": clone.host, "port": clone.port, "user": clone.user, "password": clone.password}
    with pymysql.connect(**login, autocommit=True) as c:
        with c.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

@pytest.mark.parametrize("number", range(3))
def test_data_is_clean(zsnapdb_data, number):
    assert ask(zsnapdb_data, "SELECT COUNT(*) FROM plugin.things") == ((1,),)
    ask(zsnapdb_data, f"INSERT INTO plugin.things VALUES (10 + {number})")

def test_hangs(zsnapdb_clone):
    if os.environ.get("HANG"):
        pathlib.Path(os.environ["HANG"]).touch()
        time.sleep(600)
"""


PAGE = Path(__file__).parents[2] / "docs" / "first-test.md"


def printed_tests() -> str:
    """Return the tests that the page "First test" prints, for the table of this test."""
    block: str
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return block.replace("shop.orders", "plugin.things")


def session(folder: Path, **environment: str) -> subprocess.Popen[str]:
    (folder / "test_theirs.py").write_text(TESTS)
    (folder / "test_first.py").write_text(printed_tests())
    (folder / "pytest.ini").write_text("[pytest]\nzsnapdb_instance = main\n")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "zsnapdb.client.pytest_plugin", "-p", "no:cacheprovider"]
    env = {**os.environ, **environment}
    return subprocess.Popen(
        [*words, str(folder)], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_session_of_tests_has_a_clone_and_each_test_clean_data(lab: Lab, tmp_path: Path) -> None:
    lab.sql("CREATE DATABASE plugin")
    try:
        lab.sql("CREATE TABLE plugin.things (id INT PRIMARY KEY)")
        lab.sql("INSERT INTO plugin.things VALUES (1)")
        assert lab.zsnapdb("backup").code == 0
        before = everything()
        own = session(tmp_path)
        out, _ = own.communicate(timeout=300)
        assert (own.returncode, "6 passed" in out) == (0, True), out
        assert everything() == before

        hangs = tmp_path / "hangs"
        killed = session(tmp_path, HANG=str(hangs))
        deadline = time.monotonic() + 300
        while not hangs.exists():
            assert killed.poll() is None, killed.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        last = time.monotonic()
        # Until its heartbeat is due nobody knows.
        assert lab.zsnapdb("reap").code == 0
        (left,) = lab.zsnapdb("clone", "list", "--json").json["clones"]
        time.sleep(max(0.0, last + left["heartbeat"] - time.monotonic()))
        deadline = time.monotonic() + 300
        while everything() != before:
            assert lab.zsnapdb("reap").code == 0
            assert time.monotonic() < deadline
    finally:
        lab.sql("DROP DATABASE plugin")
