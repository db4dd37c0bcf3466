"""Whether one connection of a store is slow, so that others beside it bring more.

A provider gives each connection a share of the line. Three connections that are not slow bring 180 MB/s of compressed
stream, which is more than one processor compresses or decompresses meanwhile.
"""

from __future__ import annotations

_SLOW = 60e6
"""Bytes per second. On a host that computes meanwhile, a faster store seemed slow with a higher one."""
_TELLING_BYTES = 1 << 20
"""A shorter answer says nothing of the line: its time is that of the request."""


def rate_of(size: int, seconds: float) -> float | None:
    """Return the bytes per second of a connection that took so many bytes in that time; None if they are too few."""
    return size / seconds if size >= _TELLING_BYTES and seconds > 0 else None


def is_slow(rate: float) -> bool:
    """Whether others beside a connection of so many bytes per second bring more."""
    return rate < _SLOW
