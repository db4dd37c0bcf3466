"""How much memory this host has for new programs."""

from __future__ import annotations

from zsnapdb.zfs.kernel_facts import free_memory


def available() -> int:
    """Return the bytes that a new program can have, by the kernel and the control groups; 0 if that is not known."""
    return free_memory() or 0
