"""What the loaded module says of itself and its pools is read; what it does not say is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.zfs import kernel_facts


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with nothing in /sys and /proc yet."""
    monkeypatch.setattr(kernel_facts, "MODULE", tmp_path / "module")
    monkeypatch.setattr(kernel_facts, "POOLS", tmp_path / "kstat")
    return tmp_path


def test_version_pools_and_guid_are_read(module: Path) -> None:
    (module / "module").mkdir()
    (module / "module/version").write_text("2.3.9-0+deb13u1\n")
    for pool in ("tank", "backup"):
        (module / "kstat" / pool).mkdir(parents=True)
        (module / "kstat" / pool / "state").write_text("ONLINE\n")
    (module / "kstat/tank/guid").write_text("12345678901234567890\n")
    # The folder has more than pools.
    (module / "kstat/fm").mkdir()
    (module / "kstat/arcstats").write_text("")
    assert kernel_facts.version() == "2.3.9-0+deb13u1"
    assert kernel_facts.pools() == ["backup", "tank"]
    assert (kernel_facts.pool_guid("tank"), kernel_facts.pool_guid("backup")) == (12345678901234567890, None)


def test_what_is_not_said_is_not_known(module: Path) -> None:
    assert (kernel_facts.version(), kernel_facts.pools(), kernel_facts.pool_guid("tank")) == (None, None, None)
    (module / "kstat/tank").mkdir(parents=True)
    (module / "kstat/tank/guid").write_text("no number")
    assert (kernel_facts.pools(), kernel_facts.pool_guid("tank")) == (None, None)
