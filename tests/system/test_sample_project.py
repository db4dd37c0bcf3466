"""The sample project of the documentation runs its tests on clones of four workers, and leaves no trace.

All of its two hundred tests run in `tests/bench/sample_project.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .in_guest import SOCKET, Lab, everything

pytestmark = [pytest.mark.usefixtures("first"), pytest.mark.any_server]

PROJECT = Path("/checkout/docs/sample-project")


def test_the_tests_of_the_sample_project_find_clean_data_on_each_of_four_workers(lab: Lab, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    lab.sql("CREATE DATABASE shop")
    try:
        url = f"mysql+pymysql://root@localhost/shop?unix_socket={SOCKET}"
        subprocess.run([sys.executable, "make_shop.py", url], cwd=project, check=True, timeout=300)
        assert lab.zsnapdb("snapshot", "main").code == 0
        before = everything()
        words = [sys.executable, "-m", "pytest", "-q", "-n", "4", "-p", "zsnapdb.client.pytest_plugin"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment["SHOP_ROUNDS"] = "4"
        done = subprocess.run(
            [*words, "-p", "no:cacheprovider"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert (done.returncode, "32 passed" in done.stdout) == (0, True), done.stdout + done.stderr
        assert everything() == before
    finally:
        lab.sql("DROP DATABASE shop")
