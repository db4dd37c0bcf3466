"""Copies of a virtual machine are two machines, although machine-id(5) was copied with them."""

from __future__ import annotations

import time
from pathlib import Path

from tests.unit.support import trial_engine
from zsnapdb.base.errors import BusyError
from zsnapdb.fleet import connection

CONFIG = """
[instance.main]
repository = "here"
[repository.here]
url = "file:///nonexistent"
[fleet]
server = "127.0.0.1:1"
host = "db1"
"""


def test_a_host_has_one_worker(tmp_path: Path) -> None:
    """Two would take twice as many jobs at once as the configuration allows."""
    (tmp_path / "zsnapdb.toml").write_text(CONFIG)
    words = (str(tmp_path), "fleet", "worker", "--config", str(tmp_path / "zsnapdb.toml"))
    logs = [tmp_path / "first", tmp_path / "second"]
    first = trial_engine.python("-c", trial_engine.ELSEWHERE, *words, log=logs[0])
    try:
        deadline = time.monotonic() + 120
        while "cannot be reached" not in logs[0].read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = trial_engine.python("-c", trial_engine.ELSEWHERE, *words, log=logs[1])
        assert second.wait(120) == BusyError.exit_code, logs[1].read_text()
        assert "the fleet's worker of this host" in logs[1].read_text()
    finally:
        trial_engine.end(first)
    assert first.returncode == 0


def test_a_copy_of_a_virtual_machine_is_another_machine_and_a_reboot_is_not(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    names = set()
    for firmware in ("4c4c4544-0001", "4c4c4544-0002", "4c4c4544-0001"):
        (tmp_path / "product_uuid").write_text(f"{firmware}\n")
        names.add(connection.machine(tmp_path / "machine-id", tmp_path / "product_uuid", tmp_path / "boot_id"))
    assert len(names) == 2


def test_what_nothing_is_known_of_is_told_apart_by_its_boot(tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    first = connection.machine(tmp_path / "none", tmp_path / "none", boot)
    boot.write_text("two\n")
    assert first != connection.machine(tmp_path / "none", tmp_path / "none", boot) != "0" * 16
