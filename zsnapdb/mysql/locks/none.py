"""No lock at all: an atomic snapshot is what a crash leaves, and the server recovers from that."""

from __future__ import annotations

from zsnapdb.mysql.locks.base import Strategy


class NoLock(Strategy):
    """For servers whose every user table and every DDL survives a crash; planning/strategy.py says which.

    Its connection is still opened before and asked after, so a server that restarted meanwhile is noticed.
    """

    name = "none"
    acquire = ()
    release = ("DO 0",)
