"""Copies of a virtual machine are two machines, although machine-id(5) was copied with them."""

from __future__ import annotations

from pathlib import Path

from zsnapdb.fleet import connection


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
