"""Which lock a server needs: the least that gives a consistent snapshot, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.errors import PreflightError
from zsnapdb.model import Flavour
from zsnapdb.planning.facts import Capability, ServerFacts

NAMES = ("none", "instance", "percona", "stage", "ftwrl")

_TRANSACTIONAL = {"InnoDB", "ROCKSDB"}
_STATELESS = {"MEMORY", "BLACKHOLE", "PERFORMANCE_SCHEMA", "FEDERATED", "CONNECT", "SEQUENCE"}

_NO_LOCK_NEEDED = "crash-safe tables and atomic DDL need no lock"

_ATOMIC_DDL = {Flavour.MYSQL: (8, 0, 0), Flavour.MARIADB: (10, 6, 1)}
"""First release whose DDL survives a crash whole (refman 8.0, "Atomic DDL".

MariaDB manual, "Atomic DDL"): there is nothing to ask the server.
"""

_ROW_VERSION_FLAW = ((8, 0, 29), (8, 0, 32))
"""MySQL releases whose redo log cannot be trusted for tables with row versions (Percona XtraBackup refuses them and takes 8.0.32 as sound).

Percona Server never released the flaw: 8.0.29-21 came with its repair (XtraBackup 8.0 manual, "Found tables with row
versions").
"""


@dataclass(frozen=True)
class LockChoice:
    """A strategy and why it is the one; `fallback` is what is done instead if its lock is not granted at once."""

    name: str
    reason: str
    fallback: LockChoice | None = None

    def describe(self) -> str:
        """Return both in one line, with the fallback if there is one."""
        return f"{self.name}: {self.reason}" + (
            f"; if it is not granted at once, {self.fallback.name}: {self.fallback.reason}" if self.fallback else ""
        )


def unsafe_engines(facts: ServerFacts) -> dict[str, int]:
    """Return the engines of user tables, with counts, whose files a crash at any moment may leave torn."""
    return {name: count for name, count in facts.engines.items() if name not in _TRANSACTIONAL | _STATELESS}


def row_versions_are_flawed(flavour: Flavour, release: tuple[int, ...]) -> bool:
    """Whether this release has the flaw, so that it is worth asking for tables with row versions."""
    first, sound = _ROW_VERSION_FLAW
    return flavour is Flavour.MYSQL and first <= release < sound


def has_flawed_row_versions(facts: ServerFacts) -> bool:
    """Whether crash recovery of some tables cannot be trusted: row versions under a release with the flaw."""
    return facts.row_versions > 0 and row_versions_are_flawed(facts.flavour, facts.release) and not facts.is_percona


def lock_free_objections(facts: ServerFacts) -> tuple[str, ...]:
    """Return why an atomic snapshot without any lock would not be a consistent backup; empty if it is one."""
    found = []
    others = unsafe_engines(facts)
    if others:
        found.append(f"user tables of engines without crash recovery: {_listing(others)}")
    if facts.release < _ATOMIC_DDL[facts.flavour]:
        wanted = ".".join(str(number) for number in _ATOMIC_DDL[facts.flavour])
        found.append(f"DDL is atomic from {facts.flavour} {wanted} on, this is {facts.version}")
    if has_flawed_row_versions(facts):
        found.append(f"{facts.row_versions} table(s) with row versions, whose recovery is unsound in {facts.version}")
    return tuple(found)


def available(facts: ServerFacts) -> tuple[str, ...]:
    """Return the strategies this server has the statements for."""
    found = ["none"]
    if Capability.LOCK_INSTANCE in facts.capabilities:
        found.append("instance")
    if Capability.LOCK_TABLES_FOR_BACKUP in facts.capabilities:
        found.append("percona")
    if Capability.BACKUP_STAGE in facts.capabilities:
        found.append("stage")
    return (*found, "ftwrl")


def choose(facts: ServerFacts, forced: str) -> LockChoice:
    """Return the least lock that gives a consistent snapshot.

    PreflightError if a forced one does not exist or is not enough here.
    """
    if forced != "auto":
        return _forced(facts, forced)
    if Capability.BACKUP_STAGE in facts.capabilities:
        return LockChoice(
            "stage", "BACKUP STAGE BLOCK_COMMIT freezes every engine and the position, and waits for no reader"
        )
    objections = lock_free_objections(facts)
    if not objections and Capability.LOCK_INSTANCE in facts.capabilities:
        return LockChoice(
            "instance",
            "blocks no write and keeps half-done DDL out; all user tables are crash-safe",
            LockChoice("none", _NO_LOCK_NEEDED),
        )
    if not objections:
        return LockChoice("none", _NO_LOCK_NEEDED)
    if Capability.LOCK_TABLES_FOR_BACKUP in facts.capabilities and not _delays_all_keys(facts):
        return LockChoice(
            "percona",
            "LOCK TABLES FOR BACKUP holds DDL and other engines, and waits for no reader; " + "; ".join(objections),
        )
    if Capability.LOCK_INSTANCE in facts.capabilities and not unsafe_engines(facts):
        return LockChoice("instance", "keeps DDL out; " + "; ".join(objections))
    return LockChoice("ftwrl", "; ".join(objections))


def leans_on_engines(choice: LockChoice) -> bool:
    """Whether the strategy is enough only as long as every user table is crash-safe."""
    return choice.name in ("none", "instance")


def still_enough(choice: LockChoice, facts: ServerFacts) -> str | None:
    """Return why the chosen lock is not enough for the server as it is now, or None if it is."""
    others = unsafe_engines(facts)
    if others and leans_on_engines(choice):
        return f"there are now user tables of engines without crash recovery: {_listing(others)}"
    return None


def _forced(facts: ServerFacts, forced: str) -> LockChoice:
    there = available(facts)
    if forced not in there:
        raise PreflightError(
            f"lock.strategy = {forced!r}: {facts.flavour} {facts.version} does not have it",
            hint=f"use auto, {', '.join(there)}",
        )
    objections = lock_free_objections(facts)
    if forced == "none" and objections:
        raise PreflightError(
            "lock.strategy = 'none' would not give a consistent backup: " + "; ".join(objections), hint="use auto"
        )
    if forced == "instance" and unsafe_engines(facts):
        raise PreflightError(
            "lock.strategy = 'instance' does not hold tables of other engines still:"
            f" {_listing(unsafe_engines(facts))}",
            hint="use auto, or convert them to InnoDB",
        )
    if forced == "percona" and _delays_all_keys(facts):
        raise PreflightError(
            "lock.strategy = 'percona': LOCK TABLES FOR BACKUP is refused under delay_key_write = ALL",
            hint="set delay_key_write = ON or OFF",
        )
    return LockChoice(forced, "forced by lock.strategy")


def _delays_all_keys(facts: ServerFacts) -> bool:
    """Whether MyISAM keys stay in memory for all tables: LOCK TABLES FOR BACKUP then fails (Percona Server manual, "Backup locks")."""
    return facts.variables.get("delay_key_write", "").upper() == "ALL"


def _listing(engines: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(engines.items()))
