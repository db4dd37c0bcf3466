"""Sizes and durations in words."""

from __future__ import annotations

from collections.abc import Sequence


def size(count: int) -> str:
    """Return bytes as B, KiB, MiB, GiB or TiB with one decimal."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return columns aligned to their widest cell, headings first."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
