"""Whether a store connection is so slow that parallel connections increase the total rate.

A provider gives each connection a share of the bandwidth. Three connections that are not slow carry 180 MB/s of
compressed stream, which is more than one CPU core compresses or decompresses in that time.
"""

from __future__ import annotations

_SLOW = 60e6
"""Bytes per second. With a higher limit, a faster store looked slow on a host under CPU load."""
_TELLING_BYTES = 1 << 20
"""A shorter answer does not measure the bandwidth: its time is that of the request."""


def rate_of(size: int, seconds: float) -> float | None:
    """Return the rate of a connection in bytes per second; None if `size` is too small for a measurement."""
    return size / seconds if size >= _TELLING_BYTES and seconds > 0 else None


def is_slow(rate: float) -> bool:
    """Whether additional connections increase the total rate, if one connection has this rate (bytes per second)."""
    return rate < _SLOW
