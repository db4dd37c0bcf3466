"""What `zpool` prints about a pool becomes facts; a form that is not known is left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from zsnapdb.planning.advice.facts import DeviceFacts, PoolFacts
from zsnapdb.zfs import pool_facts

STATUS = """  pool: tank
 state: ONLINE
  scan: scrub repaired 0B in 00:10:01 with 0 errors on Sun Nov  8 00:34:02 2026
config:

\tNAME                STATE     READ WRITE CKSUM
\ttank                ONLINE       0     0     0
\t  mirror-0          ONLINE       0     0     0
\t    /dev/sda1       ONLINE       0     0     0  (untrimmed)
\t    /dev/sdb1       DEGRADED     0     0     3  (trim unsupported)
\t  /dev/sdc1         ONLINE       0     0     0  (100% trimmed, completed at Sun Nov  1 00:24:05 2026)
\tspecial\t
\t  mirror-2          ONLINE       0     0     0
\t    /dev/nvme2n1    ONLINE       0     0     0
\tlogs\t
\t  /dev/nvme0n1      ONLINE       0     0     0
\tcache
\t  /dev/nvme1n1      ONLINE       0     0     0
\tspares
\t  /dev/sdd1         AVAIL

errors: No known data errors
"""


RECORDED = """  pool: poor
 state: ONLINE
status: One or more devices has experienced an error resulting in data
\tcorruption.  Applications may be affected.
action: Restore the file in question if possible.  Otherwise restore the
\tentire pool from backup.
   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-8A
config:

\tNAME           STATE     READ WRITE CKSUM
\tpoor           ONLINE       0     0     0
\t  /small/disk  ONLINE       0     0     2  (untrimmed)

errors: 1 data errors, use '-v' for a list
"""
"""Recorded of OpenZFS 2.3.9 in the lab, after a part of a file was overwritten on the disk and the file was read."""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_devices_have_their_role_and_their_group() -> None:
    status = pool_facts.parse_status(STATUS, "tank")
    assert status.devices == [
        DeviceFacts("/dev/sda1", "data", "mirror-0", "ONLINE"),
        DeviceFacts("/dev/sdb1", "data", "mirror-0", "DEGRADED"),
        DeviceFacts("/dev/sdc1", "data", "", "ONLINE"),
        DeviceFacts("/dev/nvme2n1", "special", "mirror-2", "ONLINE"),
        DeviceFacts("/dev/nvme0n1", "log", "", "ONLINE"),
        DeviceFacts("/dev/nvme1n1", "cache", "", "ONLINE"),
        DeviceFacts("/dev/sdd1", "spare", "", "AVAIL"),
    ]
    assert status.untrimmed == ["/dev/sda1"]
    assert status.errors == "No known data errors"


def test_damaged_data_is_told_and_the_lines_of_advice_are_no_devices() -> None:
    status = pool_facts.parse_status(RECORDED, "poor")
    assert status.devices == [DeviceFacts("/small/disk", "data", "", "ONLINE")]
    assert status.errors == "1 data errors, use '-v' for a list"


def test_text_of_an_unknown_form_gives_no_devices() -> None:
    assert pool_facts.parse_status("no pools available\n", "tank") == pool_facts.PoolStatus()


def pool(monkeypatch: pytest.MonkeyPatch, status: str, values: dict[str, str]) -> PoolFacts:
    def rows(argv: list[str], *, timeout: float = 60.0) -> list[list[str]]:
        assert timeout <= 20
        assert argv[:4] == ["zpool", "get", "-H", "-p"]
        if argv[-1] == "all-vdevs":
            return [["tank", "0"], ["mirror-0", "12"], ["/dev/sda1", "9"], ["/dev/sdb1", "-"]]
        return [[name, values[name]] for name in argv[6].split(",")]

    monkeypatch.setattr(pool_facts, "rows", rows)
    monkeypatch.setattr(pool_facts, "run", lambda argv, timeout: status)
    return pool_facts.read_pool("tank", datetime.fromtimestamp(1700000000, UTC))


VALUES = {"health": "DEGRADED", "capacity": "81", "fragmentation": "17%", "autotrim": "off"}


def test_a_pool_is_read_in_exact_values(monkeypatch: pytest.MonkeyPatch) -> None:
    read = pool(monkeypatch, STATUS, VALUES)
    assert (read.health, read.capacity, read.fragmentation, read.autotrim) == ("DEGRADED", 81, 17, False)
    assert read.ashifts == {"mirror-0": 12, "/dev/sda1": 9}
    assert read.last_scrub == datetime(2026, 11, 8, 0, 34, 2, tzinfo=UTC)
    assert read.created == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert read.errors == ""
    assert read.has_single_disks


@pytest.mark.parametrize(
    ("scan", "is_known"),
    [
        ("none requested", True),
        ("scrub in progress since Sun Nov 22 16:00:00 2026", False),
        ("resilvered 1.2G in 00:01:00 with 0 errors on Sun Nov 22 16:00:00 2026", False),
    ],
)
def test_a_scan_that_is_no_scrub_says_nothing_of_the_last_scrub(
    monkeypatch: pytest.MonkeyPatch, scan: str, is_known: bool
) -> None:
    lines = STATUS.split("\n")
    lines[2] = f"  scan: {scan}"
    read = pool(monkeypatch, "\n".join(lines), {**VALUES, "fragmentation": "-", "autotrim": "-"})
    assert (read.last_scrub, read.is_scrub_known) == (None, is_known)
    assert (read.fragmentation, read.autotrim) == (None, None)
