"""What a rule of `doctor` is, and what it finds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.advice.facts import AdviceFacts
from zsnapdb.planning.backup.fitness import PropertyChange, Severity


class Area(StrEnum):
    """What a rule is about. The page of the rules has a section for each area."""

    DATASETS = "Datasets"
    POOL = "Pool"
    MEMORY = "Memory and module"
    SERVER = "Server"
    RECOVERY = "Recovery"


@dataclass(frozen=True)
class Hit:
    """What a rule found: the fact, and the command or setting that mends it here ("": the fix of the rule).

    `change` is that command, if `doctor --fix` may run it (see FitnessFinding).
    """

    fact: str
    fix: str = ""
    change: PropertyChange | None = None


def mended_by(fact: str, change: PropertyChange, note: str = "") -> Hit:
    """Return a hit that a safe change mends. `note` says what the change does not do."""
    return Hit(fact, f"{change.command}{note}", change)


@dataclass(frozen=True)
class Rule:
    """A rule over facts. `id` never changes: configurations name it to silence the rule.

    `title` says what should be. `reason` says what happens otherwise. `source` names the manual page, the release or
    the experiment that the rule follows. `fix` says what to do. `check` returns what the rule finds; nothing if all is
    well, or if a fact that it needs could not be read.
    """

    id: str
    area: Area
    title: str
    reason: str
    source: str
    fix: str
    check: Callable[[AdviceFacts], Iterable[Hit]]
    severity: Severity = Severity.WARNING
