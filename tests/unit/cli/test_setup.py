"""`zsnapdb setup` as a person runs it on a host that has no server and no pool."""

from __future__ import annotations

from pathlib import Path

from tests.unit.support.command_line import zsnapdb


def test_a_host_without_zfs_is_told_what_it_lacks_and_nothing_is_written(tmp_path: Path) -> None:
    for words in (("--plan",), ()):
        done = zsnapdb("setup", "file:///srv/backups", "--config", str(tmp_path / "etc" / "z.toml"), *words)
        assert done.returncode == 4
        assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_help_of_setup_names_every_answer() -> None:
    text = zsnapdb("setup", "--help").stdout
    for word in (
        "ADDRESS",
        "--socket",
        "--pool",
        "--endpoint",
        "--credentials-file",
        "--plain",
        "--plan",
        "--config",
        "--yes",
    ):
        assert word in text
