"""Gives memory back: what a process of many threads has freed, the C library keeps in as many heaps otherwise."""

from __future__ import annotations

import contextlib
import ctypes

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Parameters of mallopt(3), as malloc.h of glibc has them."""
_HEAPS = 2
_LARGE = 128 << 10
"""From this size on, in bytes, an object has pages of its own, which go back when it is freed: glibc's first value."""


def give_back_memory() -> None:
    """Let the threads that begin from now on share two heaps, and large objects have pages of their own for good.

    The GNU C library has up to eight heaps a processor, each as large as the most that its threads ever held, and
    counts ever larger objects as small ones (mallopt(3)). A service whose threads read documents of some MiB grows for
    hours by that, without holding more. Another C library stays as it is.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, _HEAPS)
        mallopt(_MMAP_THRESHOLD, _LARGE)
