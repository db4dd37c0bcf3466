"""Retention: the decision which backups stay, with reasons for each.

The decision is pure: the backups, the rules and the time are arguments. A prune never removes these backups:

- The base of a backup that stays.
- The last backup that can be restored.
- A backup with an unreadable manifest, and the backups that may be its bases.

The rules apply to each server separately if several servers write under one name (`backup_writers.py`).

Several restorable backups may have the same snapshots, because `zsnapdb consolidate` creates a second backup of a set.
The rules consider only the latest of them.

The time of a backup is the UTC time in its id. If that time is in the future, the clock was ahead. As soon as the clock
is right, the backup is treated as if it was created at the time of the next backup. The rules keep the newest backup of
each period (hour, day, ISO week, month or year; all UTC).

If the ids of two backups contradict their order, a clock was ahead or behind, and the periods of both are unknown. A
backup of an unknown period may be the newest of its period, so it stays until there are enough newer periods with known
backups. Under the rules, it never takes the place of another backup. So a wrong clock can only delay a removal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import islice
from typing import Protocol

from zsnapdb.base.domain_types import backup_time
from zsnapdb.base.errors import DamagedError
from zsnapdb.base.quantities import format_setting
from zsnapdb.config.repository import KeepRules
from zsnapdb.planning.backup_chain import Lineage, Link
from zsnapdb.planning.creation_order import contradicted, with_unplaced

NEEDED_BY = "needed by "
"""The beginning of the reason for a backup that stays as the base of another backup."""
_LATEST = datetime.max.replace(tzinfo=UTC)
CLOCK_SLACK = timedelta(days=1)
"""The largest expected amount by which a host's clock is set back between two consecutive backups."""


class Unrestorable(StrEnum):
    """The treatment of backups that cannot be restored (broken chain, damage) but have readable manifests."""

    KEEP = "keep"
    REMOVE = "remove"


@dataclass(frozen=True)
class RetentionFacts:
    """Facts for retention that are not in the manifests. The mappings map backup ids to texts."""

    unreadable: Mapping[str, str] = field(default_factory=dict)
    faulty: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    in_use: Mapping[str, str] = field(default_factory=dict)
    locked: Mapping[str, str] = field(default_factory=dict)
    writers: Mapping[str, str] = field(default_factory=dict)
    """The server that wrote each backup. The rules apply to each server separately."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """The reasons why this host does not know a backup.

    A foreign backup stays, and does not take the place of a known backup.
    """
    untrusted: Collection[str] = ()
    """The foreign backups that may not be part of a chain."""
    begun: Collection[str] = ()
    """The backups whose removal this host began. Under the rules, they do not take the place of other backups."""

    order: Sequence[str] = ()
    """The ids of all backups with known places, including unreadable ones, oldest first."""
    is_sure: bool = False
    """Whether a backup time in the future is certainly wrong (`RemovalTime.is_sure`).

    If so, a backup with a future time is treated as created together with the next backup.
    """
    unsure: Collection[str] = ()
    """The backups that this host created while its clock may have been behind, so that their periods are unknown."""


@dataclass(frozen=True)
class Decision:
    """The decision whether a backup stays, with one or more reasons."""

    backup_id: str
    keep: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Retention:
    """A decision for every backup, oldest first.

    The field `removal_order` lists the backups to remove, each increment before its base. The field `replaced` maps a
    backup to the one with the same snapshots that is used in its place.
    """

    decisions: tuple[Decision, ...]
    removal_order: tuple[str, ...]
    replaced: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The ids of the backups that stay."""
        return frozenset(d.backup_id for d in self.decisions if d.keep)


_PERIODS: Mapping[str, Callable[[datetime], str]] = {
    "hourly": lambda at: f"{at:%Y-%m-%d %Hh}",
    "daily": lambda at: f"{at:%Y-%m-%d}",
    "weekly": lambda at: "{}-W{:02d}".format(*at.isocalendar()),
    "monthly": lambda at: f"{at:%Y-%m}",
    "yearly": lambda at: f"{at:%Y}",
}


@lru_cache(1 << 16)
def time_of(backup_id: str) -> datetime:
    """Return the time in a backup id. If the id contains no time, return the latest representable time."""
    try:
        return backup_time(backup_id)
    except ValueError:
        return _LATEST


def decide(
    stored: Sequence[Link],
    rules: KeepRules,
    now: datetime,
    known: RetentionFacts | None = None,
    unrestorable: Unrestorable = Unrestorable.KEEP,
) -> Retention:
    """Return the decisions of the retention policy at `now` about an instance's stored backups (oldest first)."""
    known = known or RetentionFacts()
    links = [link for link in stored if link.backup_id not in known.untrusted]
    family = _Family(links, known)
    uncounted = {*family.unsound, *known.foreign, *known.begun}
    counted = [link for link in links if link.backup_id not in uncounted]
    times = _Times.of([link.backup_id for link in counted], now, known.unsure, is_sure=known.is_sure)
    sound = [link for link in counted if times.at[link.backup_id] <= now]
    replaced = _replaced(sound)
    good = [link.backup_id for link in reversed(sound) if link.backup_id not in replaced]
    keep: dict[str, list[str]] = {link.backup_id: [] for link in links}
    if not good:
        keep |= {name: ["its removal began before, and no other backup can be restored"] for name in known.begun}
    apart: dict[str, list[str]] = {}
    for name in good:
        apart.setdefault(known.writers.get(name, ""), []).append(name)
    for writer, names in apart.items():
        _apply_rules(names, times, rules, now, keep, f" of {writer}" if len(apart) > 1 else "")
    # Broken backups stay if there is no good backup. They also stay if a manifest is unreadable, because it may be
    # repaired.
    _protect(keep, times.at, family, now, known, unrestorable if good and not known.unreadable else Unrestorable.KEEP)
    _keep_bases(keep, family)
    why_not = {
        name: reasons for names in apart.values() for reasons in [_Reasons(names, times, rules)] for name in names
    }
    decisions = [
        Decision(
            name,
            bool(reasons),
            tuple(reasons)
            or ((f"cannot be restored: {family.unsound[name]}",) if name in family.unsound else ())
            or (("its removal began before",) if name in known.begun else ())
            or ((f"{replaced[name]} has the same snapshots, and counts instead",) if name in replaced else ())
            or why_not[name].of(name),
        )
        for name, reasons in keep.items()
    ]
    decided = {decision.backup_id: decision for decision in decisions}
    unplaced = {name: f"protected: its manifest cannot be read: {why}" for name, why in known.unreadable.items()}
    unplaced |= {name: f"foreign: {known.foreign[name]}" for name in known.untrusted}
    for name, reason in unplaced.items():
        decided[name] = Decision(name, True, (reason,))
    decisions = [decided[name] for name in with_unplaced(list(keep), unplaced)]
    gone = [d.backup_id for d in reversed(decisions) if not d.keep]
    increments_first = tuple(sorted(gone, key=lambda name: -family.depth[name]))
    return Retention(tuple(decisions), increments_first, replaced)


@dataclass(frozen=True)
class _Times:
    """The times of backups for the rules: the times in their ids, or their latest possible times.

    If a backup's id contradicts the order of creation, its latest possible time is in `unknown`.
    """

    at: Mapping[str, datetime]
    unknown: Mapping[str, datetime]

    @classmethod
    def of(cls, names: Sequence[str], now: datetime, unsure: Collection[str], *, is_sure: bool) -> _Times:
        """Return the times of backups, oldest first.

        A backup is older than the next backup with a known time. So if a backup has a wrong time in the future, the
        time of that next backup is used.
        """
        times = {name: time_of(name) for name in names}
        past = [name for name in names if times[name] <= now]
        doubtful = {name for name, wrong in zip(past, contradicted([times[n] for n in past]), strict=True) if wrong}
        doubtful |= set(past) & set(unsure)
        unknown: dict[str, datetime] = {}
        following: datetime | None = None
        for name in reversed(names):
            at = times[name]
            if name in doubtful:
                # The present time is not an upper bound, because a doubtful clock may be behind.
                unknown[name] = following or (now if is_sure else _LATEST)
                times[name] = max(at, following or now)
            elif at <= now:
                following = at
            elif is_sure and following is not None:
                times[name] = unknown[name] = following
        return cls(times, unknown)

    def newest(self, good: Sequence[str], rule: str) -> dict[str, str]:
        """Return the newest backup of each period, newest period first. The list `good` is ordered newest first."""
        newest: dict[str, str] = {}
        for name in good:
            if name not in self.unknown:
                newest.setdefault(_PERIODS[rule](self.at[name]), name)
        return newest

    def possibly_newest(self, good: Sequence[str], rule: str, count: int) -> list[str]:
        """Return the backups of unknown periods that may be the newest in one of the `count` newest periods."""
        period_of, periods = _PERIODS[rule], set[str]()
        possible, waiting = list[str](), list[str]()
        if count == 1 and good and good[0] in self.unknown:
            return [good[0]]
        for name in good:
            if name in self.unknown:
                waiting.append(name)
                continue
            period = period_of(self.at[name])
            if period not in periods:
                # If all these backups were created in this period, the latest of them is the newest of the period.
                is_same = bool(waiting) and period_of(self.unknown[waiting[0]]) == period
                possible += waiting[:1] if is_same else waiting
            waiting = []
            periods.add(period)
            if len(periods) >= count:
                break
        return possible + waiting


def _replaced(sound: Sequence[Link]) -> dict[str, str]:
    """Return the replaced backups by id, each with the latest restorable backup that has the same snapshots."""
    latest: dict[frozenset[tuple[str, int]], str] = {}
    replaced = {}
    for link in reversed([link for link in sound if link.volumes]):
        name = latest.setdefault(frozenset((v.role, v.guid) for v in link.volumes), link.backup_id)
        if name != link.backup_id:
            replaced[link.backup_id] = name
    return replaced


class _Family:
    """The base of each backup, its depth in its chain, and the reason why it cannot be restored, if any."""

    def __init__(self, links: Sequence[Link], known: RetentionFacts) -> None:
        lineage = Lineage(links, known.faulty)
        self.base: dict[str, str | None] = {}
        self.unsound: dict[str, str] = {}
        self.depth: dict[str, int] = {}
        for link in links:
            try:
                base = lineage.base(link)
                self.base[link.backup_id] = base.backup_id if base is not None else None
            except DamagedError as error:
                self.base[link.backup_id] = None
                self.unsound[link.backup_id] = error.message
        for name, what in known.faulty.items():
            if name in self.base:
                self.unsound[name] = what
        for link in links:
            self._settle(link.backup_id)

    def _settle(self, name: str) -> None:
        """Determine the depths of a backup and of every base in its chain, and whether they can be restored."""
        path: list[str] = []
        on_path: set[str] = set()
        at: str | None = name
        while at is not None and at not in self.depth:
            if at in on_path:
                self.unsound.setdefault(at, "its chain leads in a circle")
                self.base[at] = None
                break
            path.append(at)
            on_path.add(at)
            at = self.base[at]
        for current in reversed(path):
            base = self.base[current]
            self.depth[current] = self.depth.get(base, 0) + 1 if base is not None else 0
            if base is not None and base in self.unsound:
                why = self.unsound[base]
                self.unsound.setdefault(current, why if why.startswith("it needs ") else f"it needs {base}: {why}")


def _apply_rules(
    good: Sequence[str], times: _Times, rules: KeepRules, now: datetime, keep: dict[str, list[str]], whose: str
) -> None:
    """Add the rules that keep each restorable backup (newest first) to its reasons. The server is named in `whose`."""
    for number, name in enumerate(good[: rules.last], 1):
        keep[name].append(f"last ({number} of {rules.last}){whose}")
    for rule in _PERIODS:
        count: int = getattr(rules, rule)
        if not count:
            continue
        for number, (period, name) in enumerate(islice(times.newest(good, rule).items(), count), 1):
            keep[name].append(f"{rule} {period} ({number} of {count}){whose}")
        for name in times.possibly_newest(good, rule, count):
            keep[name].append(f"{rule}: its time is not known, and it may be the newest of its period{whose}")
    if rules.within:
        for name in good:
            if now - times.at[name] <= timedelta(seconds=rules.within):
                keep[name].append(f"within {format_setting(rules.within)}")
    for number, name in enumerate(good[: rules.minimum], 1):
        if not keep[name]:
            keep[name].append(f"minimum ({number} of {rules.minimum}){whose}")


def _protect(
    keep: dict[str, list[str]],
    times: Mapping[str, datetime],
    family: _Family,
    now: datetime,
    known: RetentionFacts,
    unrestorable: Unrestorable,
) -> None:
    """Add the reasons that keep a backup independently of the retention policy."""
    protections = (("pinned", known.pinned), ("in use", known.in_use), ("locked by the store", known.locked))
    for protection, names in protections:
        for name, why in names.items():
            if name in keep:
                keep[name].append(f"{protection}: {why}")
    needing = _needing(list(keep), known)
    for name, reasons in keep.items():
        if name in known.foreign:
            reasons.append(f"foreign: {known.foreign[name]}")
        if times.get(name, time_of(name)) > now:
            reasons.append("its time is in the future: a clock was wrong")
        if name in family.unsound and unrestorable is Unrestorable.KEEP:
            reasons.append(f"protected, and counted by no rule, as it cannot be restored: {family.unsound[name]}")
        if name in needing and not reasons:
            reasons.append(f"protected: {needing[name]}, whose manifest cannot be read, may need it")


def _needing(names: Sequence[str], known: RetentionFacts) -> dict[str, str]:
    """Return each backup that may be the base of an unreadable backup, with the unreadable backup that may need it.

    An increment is not older than its base. If the place of the unreadable backup is unknown, the time in its id is
    used.
    """
    placed = [name for name in known.order if name in known.unreadable]
    before = frozenset(known.order[: known.order.index(placed[-1])]) if placed else frozenset[str]()
    latest = max((name for name in known.unreadable if name not in placed), key=time_of, default=None)
    needing = {name: placed[-1] for name in names if name in before}
    if latest is not None:
        needing |= {name: latest for name in names if time_of(name) - CLOCK_SLACK < time_of(latest)}
    return needing


def _keep_bases(keep: dict[str, list[str]], family: _Family) -> None:
    """Add reasons to keep the bases of kept backups."""
    for name in sorted(
        (name for name, reasons in keep.items() if reasons), key=lambda n: family.depth[n], reverse=True
    ):
        at, base = name, family.base[name]
        while base is not None:
            already = bool(keep[base])
            needed = f"{NEEDED_BY}{at}"
            if needed not in keep[base]:
                keep[base].append(needed)
            if already:
                break
            at, base = base, family.base[base]


class _Reasons:
    """Builds the reasons why no rule keeps an expired backup."""

    def __init__(self, good: Sequence[str], times: _Times, rules: KeepRules) -> None:
        self._rules, self._times = rules, times
        self._rank = {name: number for number, name in enumerate(good)}
        used = [rule for rule in _PERIODS if getattr(rules, rule)]
        self._newest = {rule: times.newest(good, rule) for rule in used}
        self._possibly = {rule: set(times.possibly_newest(good, rule, len(good) + 1)) for rule in used}

    def of(self, name: str) -> tuple[str, ...]:
        """Return one reason for each rule."""
        rules, at = self._rules, self._times.unknown.get(name, self._times.at[name])
        reasons = [f"last: {self._rank[name]} are newer"] if rules.last else []
        for rule, newest in self._newest.items():
            period = _PERIODS[rule](at)
            if name in self._possibly[rule]:
                reasons.append(f"{rule}: its time is not known, and the {getattr(rules, rule)} kept are newer")
            elif newest[period] != name:
                reasons.append(f"{rule}: {newest[period]} is the newest of {period}")
            else:
                reasons.append(f"{rule}: {period} is before the {getattr(rules, rule)} kept")
        if rules.within:
            reasons.append(f"within: older than {format_setting(rules.within)}")
        return tuple(reasons)


_CANDIDATES = (30 * 86400.0, 14 * 86400.0, 7 * 86400.0, 3 * 86400.0, 86400.0)
"""The values of `full_every`, in seconds, for which savings are estimated."""


class SizedBackup(Protocol):
    """A stored backup with its size in bytes."""

    @property
    def backup_id(self) -> str: ...
    @property
    def stored_size(self) -> int: ...
    @property
    def is_full(self) -> bool: ...


@dataclass(frozen=True)
class FullEvery:
    """A value of `full_every` in seconds. With it, the same retention policy would keep fewer bytes.

    The saving in bytes is `freed`, after the additional full backups are subtracted. The number of kept backups
    decreases by `fewer`. Both estimates assume that an additional full backup is as large as the newest one.
    """

    every: float
    fewer: int
    freed: int


@dataclass(frozen=True)
class ChainCost:
    """The backups that stay only as bases of other backups, their size in bytes, and the best other `full_every`."""

    only_needed: tuple[str, ...]
    size: int
    better: FullEvery | None

    def describe(self, kept: int, size_text: str, freed_text: str) -> str:
        """Return the cost as text. The argument `kept` is the number of all kept backups."""
        if not self.only_needed:
            return ""
        text = f"{len(self.only_needed)} of {kept} backups stay only because newer ones need them ({size_text})"
        if self.better is None:
            return f"{text}; a shorter full_every would free nothing"
        return (
            f"{text}; with full_every = {format_setting(self.better.every)} the policy would keep {self.better.fewer}"
            f" backups and about {freed_text} less"
        )


def chain_cost(decisions: Sequence[Decision], stored: Sequence[SizedBackup]) -> ChainCost:
    """Return the cost of the bases that kept backups need, and the `full_every` that would free the most bytes.

    The argument `stored` contains the backups, oldest first.
    """
    backups = list(stored)
    kept = {d.backup_id for d in decisions if d.keep}
    ruled = {d.backup_id for d in decisions if d.keep and not all(r.startswith(NEEDED_BY) for r in d.reasons)}
    needed = kept - ruled
    only_needed = [backup for backup in backups if backup.backup_id in needed]
    now = sum(backup.stored_size for backup in backups if backup.backup_id in kept)
    tried = [_with(every, backups, ruled, len(kept), now) for every in _CANDIDATES] if only_needed else []
    best = max(tried, key=lambda one: one.freed, default=None)
    size = sum(backup.stored_size for backup in only_needed)
    return ChainCost(
        tuple(b.backup_id for b in only_needed), size, best if best is not None and best.freed > 0 else None
    )


def _with(every: float, backups: Sequence[SizedBackup], ruled: Collection[str], kept: int, now: int) -> FullEvery:
    """Return the estimated saving with a full backup at least every `every` seconds."""
    full_size = next((backup.stored_size for backup in reversed(backups) if backup.is_full), 0)
    chains: list[list[tuple[str, int]]] = []
    started = None
    for backup in backups:
        made = time_of(backup.backup_id)
        is_due = started is None or made - started >= timedelta(seconds=every)
        if backup.is_full or is_due:
            started = made
            chains.append([(backup.backup_id, max(backup.stored_size, full_size if is_due else 0))])
        else:
            chains[-1].append((backup.backup_id, backup.stored_size))
    count = size = 0
    for chain in chains:
        last = max((number for number, (name, _) in enumerate(chain) if name in ruled), default=-1)
        count += last + 1
        size += sum(stored for _, stored in chain[: last + 1])
    return FullEvery(every, kept - count, now - size)
