"""Which parts of a server survive a crash at any moment: the reasons for and against a lock. Pure."""

from __future__ import annotations

from zsnapdb.base.model import Flavour
from zsnapdb.planning.engines import survives_a_crash
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.family import family

_ROW_VERSION_FLAW = ((8, 0, 29), (8, 0, 32))
"""MySQL releases whose redo log cannot be trusted for tables with row versions: from the first to before the second.

Percona XtraBackup refuses these releases and accepts 8.0.32. Percona Server never released the flaw: 8.0.29-21 came
with its repair (XtraBackup 8.0 manual, "Found tables with row versions").
"""


def unsafe_engines(facts: ServerFacts) -> dict[str, int]:
    """Return the engines of user tables, with counts, whose files a crash at any moment may leave torn."""
    return {name: count for name, count in facts.engines.items() if not survives_a_crash(name)}


def row_versions_are_flawed(flavour: Flavour, release: tuple[int, ...]) -> bool:
    """Whether this release has the flaw. Other releases need no query for tables with row versions."""
    first, sound = _ROW_VERSION_FLAW
    return flavour is Flavour.MYSQL and first <= release < sound


def has_flawed_row_versions(facts: ServerFacts) -> bool:
    """Whether crash recovery of some tables cannot be trusted: row versions under a release with the flaw."""
    return facts.row_versions > 0 and row_versions_are_flawed(facts.flavour, facts.release) and not facts.is_percona


def lock_free_objections(facts: ServerFacts) -> tuple[str, ...]:
    """Return why an atomic snapshot without any lock would not be a consistent backup; empty if it is one."""
    objections = []
    others = unsafe_engines(facts)
    if others:
        objections.append(f"user tables of engines without crash recovery: {listing(others)}")
    atomic_from = family(facts.flavour).atomic_ddl_from
    if facts.release < atomic_from:
        first_release = ".".join(str(number) for number in atomic_from)
        objections.append(f"DDL is atomic from {facts.flavour} {first_release} on, this is {facts.version}")
    if has_flawed_row_versions(facts):
        objections.append(
            f"{facts.row_versions} table(s) with row versions, whose recovery is unsound in {facts.version}"
        )
    return tuple(objections)


def listing(engines: dict[str, int]) -> str:
    """Return the engines with their numbers of tables, in one line."""
    return ", ".join(f"{count} {name}" for name, count in sorted(engines.items()))
