"""Sizes and tables as a person reads them."""

from __future__ import annotations

from zsnapdb.base.quantities import size
from zsnapdb.report.view import table


def test_sizes_read_well() -> None:
    assert [size(0), size(1023), size(1536), size(32 << 20), size(5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "32.0 MiB",
        "5.0 TiB",
    ]


def test_tables_align() -> None:
    assert table(("A", "LONG"), [("xyz", "1")]) == "A    LONG\nxyz  1"
