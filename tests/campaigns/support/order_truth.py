"""The truth of the campaign `order`: the order of creation, and what rules under a right clock keep. Pure.

The order is that of the campaign's commands, and the time is the true one, which the campaign counts itself. No id and
no clock of the guest is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

Marks = tuple[int, ...]
"""The numbers in the table of marks, which identify the moment and the history."""

LEAST_HERE = 2
"""The default of keep.local_minimum."""


@dataclass(frozen=True)
class Policy:
    """A retention policy: `last` sets, the newest per hour and day, and those of the last `within` seconds."""

    last: int = 0
    hourly: int = 0
    daily: int = 0
    within: float = 0.0

    @property
    def is_by_number(self) -> bool:
        """Whether no rule depends on time."""
        return not (self.hourly or self.daily or self.within)

    def lines(self) -> str:
        """Return the rules as lines of the configuration."""
        named = {"last": self.last, "hourly": self.hourly, "daily": self.daily}
        lines = [f"{name} = {value}" for name, value in named.items() if value]
        return "\n".join([*lines, *([f'within = "{self.within:g}s"'] if self.within else []), ""])


@dataclass
class MadeSet:
    """A snapshot set: its number in the order, its contents, and its true creation time.

    `guids` are those of its snapshots by role. `base` is the backup on which it is an increment.
    """

    number: int
    set_id: str
    marks: Marks
    at: float
    epoch: int
    guids: Mapping[str, int]
    is_stored: bool = False
    base: int | None = None
    binlog: str = ""


@dataclass
class MadeClone:
    """A clone: its expected contents, and the true time until which it must exist. `is_slot`: it has no user."""

    name: str
    marks: Marks
    until: float
    datasets: Collection[int]
    is_slot: bool = False
    port: int = 0
    login: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class MadeDrill:
    """A drill: its id, and whether it passed."""

    drill_id: str
    passed: bool


@dataclass
class Truth:
    """All objects that were created in a round."""

    sets: list[MadeSet] = field(default_factory=list)
    drills: list[MadeDrill] = field(default_factory=list)
    clones: dict[str, MadeClone] = field(default_factory=dict)
    epoch: int = 0
    taken_back: set[int] = field(default_factory=set)
    """The numbers of sets with a state that a rewind or rollback of this host took back."""

    def of_id(self, set_id: str) -> MadeSet | None:
        """Return the set with this id; None if the campaign did not create it."""
        return next((one for one in self.sets if one.set_id == set_id), None)

    def of_guid(self, guid: int) -> MadeSet | None:
        return next((one for one in self.sets if guid in one.guids.values()), None)

    @property
    def backups(self) -> list[MadeSet]:
        """All stored sets, in order of creation."""
        return [one for one in self.sets if one.is_stored]

    def here(self, guids: Collection[int]) -> list[MadeSet]:
        """Return the sets with all their snapshots among these, in order of creation."""
        return [one for one in self.sets if set(one.guids.values()) <= set(guids)]


def kept(sets: Sequence[MadeSet], rules: Policy, now: float) -> set[int]:
    """Return the numbers of the sets that the rules keep at the true time `now`."""
    newest_first = sorted(sets, key=lambda one: -one.number)
    stay = {one.number for one in newest_first[: max(1, rules.last)]}
    periods: tuple[tuple[int, Callable[[datetime], str]], ...] = (
        (rules.hourly, lambda at: f"{at:%Y-%m-%d %H}"),
        (rules.daily, lambda at: f"{at:%Y-%m-%d}"),
    )
    for count, name in periods:
        newest: dict[str, int] = {}
        for one in newest_first:
            newest.setdefault(name(datetime.fromtimestamp(one.at, UTC)), one.number)
        stay.update(list(newest.values())[:count])
    # Up to one second passes between the reading of the clock and the command's own.
    return stay | {one.number for one in sets if rules.within and now - one.at < rules.within - 1}


def kept_backups(truth: Truth, stored: Collection[int], rules: Policy, now: float) -> set[int]:
    """Return the numbers of the stored backups that must stay: those that the rules keep, and their bases."""
    there = [one for one in truth.backups if one.number in stored]
    stay = kept(there, rules, now)
    by_number = {one.number: one for one in there}
    for number in list(stay):
        base = by_number[number].base
        while base is not None and base in by_number:
            stay.add(base)
            base = by_number[base].base
    return stay


def may_go(
    gone: MadeSet, here: Sequence[MadeSet], stored: Collection[int], local: Policy, most: int | None, now: float
) -> bool:
    """Return whether rules under a right clock allow the removal of a set's snapshots from the host.

    `here` are all earlier sets of the instance on the host, `stored` the backups in the repository afterwards.
    """
    if not gone.is_stored:
        return gone.number not in kept([one for one in here if not one.is_stored], local, now)
    backups = [one.number for one in here if one.is_stored]
    least = LEAST_HERE if most is None else min(most, LEAST_HERE)
    if gone.number in sorted(backups)[-least:]:
        return False
    there = sorted(number for number in backups if number in stored)
    return gone.number not in stored or (most is not None and gone.number not in there[-most:])
