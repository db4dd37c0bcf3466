"""Which lock a server needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.errors import PreflightError
from zsnapdb.model import Flavour

_TRANSACTIONAL = {"InnoDB", "ROCKSDB"}
_STATELESS = {"MEMORY", "BLACKHOLE", "PERFORMANCE_SCHEMA", "FEDERATED", "CONNECT", "SEQUENCE"}


@dataclass(frozen=True)
class Choice:
    """The strategy's name and why it is the one."""

    name: str
    reason: str


def choose(flavour: Flavour, engines: Mapping[str, int], forced: str) -> Choice:
    """Return the least lock that gives a consistent snapshot. PreflightError if a forced one does not exist here.

    `engines` counts user tables by storage engine.
    """
    available = {Flavour.MYSQL: ("instance", "ftwrl"), Flavour.MARIADB: ("stage", "ftwrl")}[flavour]
    if forced != "auto":
        if forced not in available:
            raise PreflightError(f"lock.strategy = {forced!r} does not exist on {flavour}", hint=f"use auto, {' or '.join(available)}")
        return Choice(forced, "forced by lock.strategy")
    if flavour is Flavour.MARIADB:
        return Choice("stage", "MariaDB: BACKUP STAGE BLOCK_COMMIT freezes every engine and the position, and waits for no reader")
    others = {name: count for name, count in engines.items() if name not in _TRANSACTIONAL | _STATELESS}
    if others:
        listing = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
        return Choice("ftwrl", f"user tables of engines without crash recovery: {listing}")
    return Choice("instance", "all user tables are InnoDB: their recovery needs no lock, LOCK INSTANCE FOR BACKUP keeps DDL out")
