"""Determines the order in which snapshot sets, backups, drills, findings and binlog histories were created. Pure.

The order does not depend on clocks. On a host, snapshot sets are ordered by `createtxg`, a transaction group of their
pool. In a repository, each new document has a sequence number: the greatest number that its writer knew, plus one. In a
repository, `createtxg` also orders the sets of one pool. This is needed because a set may be stored late, and because a
consolidated backup contains old snapshots.

Documents of earlier versions have no number. They come before numbered documents, unless the order in their pool shows
otherwise. If they are from different pools, they are ordered by their ids. These ids are times, but no better order is
known.

No other module uses ids or times to determine an order. `tests/unit/test_order_law.py` checks this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from typing import Any, Protocol, TypeVar

from zsnapdb.base.patterns import GREATEST_SEQUENCE
from zsnapdb.planning.backup_chain import Link

STEP = 2**24
"""The largest accepted gap between a stored number and the next smaller one.

The gap of a real host is smaller, even if it makes a backup every minute and keeps only one in thirty years. An
attacker who wants to use up all numbers in steps of this size needs 2**29 documents.
"""


class PlacedLink(Link, Protocol):
    """A stored backup with the facts that order it: its pool, its snapshots' transaction group, and its number."""

    @property
    def pool_guid(self) -> int: ...
    @property
    def createtxg(self) -> int: ...
    @property
    def sequence(self) -> int | None: ...


NOTHING: Mapping[str, int] = {}
T = TypeVar("T")
L = TypeVar("L", bound=Link)
P = TypeVar("P", bound=PlacedLink)


def greatest_reached(numbers: Iterable[int | None], known: int = 0, step: int = STEP) -> int:
    """Return the greatest of the numbers that can be reached from `known` in steps of at most `step`.

    Greater numbers are ignored, because an attacker can write any number. A number that no honest writer can have
    reached must neither use up the remaining numbers nor make its document the latest.
    """
    reached = known
    for number in sorted(one for one in numbers if one is not None):
        if number > reached + step:
            break
        reached = max(reached, number)
    return min(reached, GREATEST_SEQUENCE)


def next_number(given: int, stored: Iterable[int | None]) -> int:
    """Return the sequence number of a new document.

    The argument `given` is the greatest number that this host recorded as used, or 0 if there is none. The argument
    `stored` contains the numbers of the documents that this host accepts.
    """
    return min(greatest_reached(stored, given) + 1, GREATEST_SEQUENCE)


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of numbers in ascending order. Adjacent and overlapping ranges become one range."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            first, last = merged[-1][0], max(last, merged.pop()[1])
        merged.append((first, last))
    return tuple(merged)


def below_newest(
    listed: Iterable[int | None], numbers: Mapping[str, int | None], kept: Collection[str]
) -> Mapping[str, int]:
    """Return the documents whose number is below the greatest listed number, except those in `kept`."""
    newest = greatest_reached(listed)
    return {
        name: number for name, number in numbers.items() if number is not None and number < newest and name not in kept
    }


def by_number(documents: Iterable[T], number: Callable[[T], int | None], name: Callable[[T], Any]) -> list[T]:
    """Return the documents by number, oldest first. Documents without a number come first, ordered by name or time."""
    listed = list(documents)
    reached = greatest_reached(map(number, listed))
    return sorted(listed, key=lambda one: (_believed(number(one), reached), name(one)))


def failed_last(drills: Iterable[T], number: Callable[[T], int | None], has_failed: Callable[[T], bool]) -> list[T]:
    """Return the drills in the given order. Among drills with the same number, failed drills come last.

    Concurrent drills of several hosts can get the same number. The hosts' clocks do not decide which of these drills is
    the latest.
    """
    groups = ((of_number, list(same)) for of_number, same in groupby(drills, number))
    return [one for of_number, same in groups for one in (same if of_number is None else sorted(same, key=has_failed))]


def _believed(number: int | None, reached: int) -> int:
    return number if number is not None and number <= reached else 0


def by_creation(items: Iterable[T], createtxg: Callable[[T], int]) -> list[T]:
    """Return the snapshot sets or snapshots of one pool in order of creation, oldest first."""
    return sorted(items, key=createtxg)


def contradicted(times: Sequence[datetime], slack: timedelta = timedelta()) -> list[bool]:
    """Return, for each time in order of creation, whether a previous time is later or a following time is earlier.

    If two times contradict each other, a clock was wrong, and it is unknown which of the two times is right.
    Differences up to `slack` are ignored.
    """
    earlier = [datetime.min.replace(tzinfo=UTC), *accumulate(times, max)]
    later = [datetime.max.replace(tzinfo=UTC), *accumulate(reversed(times), min)]
    later.reverse()
    return [earlier[at] - time > slack or time - later[at + 1] > slack for at, time in enumerate(times)]


def earliest(*times: datetime) -> datetime:
    """Return the earliest of several times. Each of them is an upper bound for the same creation time."""
    return min(times)


def by_pool(items: Iterable[T], place: Callable[[T], tuple[int, int]], production: Collection[int]) -> list[T]:
    """Return the snapshot sets of several pools, oldest first.

    `place` returns the pool GUID and the transaction group. Sets of the pools in `production` come last, because new
    sets are created in these pools. The order among the other pools is arbitrary.
    """

    def key(item: T) -> tuple[bool, int, int]:
        pool, createtxg = place(item)
        return pool in production, pool, createtxg

    return sorted(items, key=key)


class _Created(Protocol):
    @property
    def createtxg(self) -> int: ...


M = TypeVar("M", bound=_Created)


def made_before(items: Iterable[M], createtxg: int) -> list[M]:
    """Return the items that ZFS created before the given transaction group of their pool."""
    return [item for item in items if item.createtxg < createtxg]


def made_after(groups: Mapping[str, int], createtxg: int) -> list[str]:
    """Return the names of the snapshots that ZFS created after the given transaction group of their pool."""
    return [name for name, made in groups.items() if made > createtxg]


def is_kept_state(
    bookmark: int, snapshots: Iterable[int], replacements: Iterable[int], first: int | None
) -> bool | None:
    """Return whether a bookmark without its snapshot is an earlier state of its dataset; None if unknown.

    All numbers are transaction groups of the dataset's pool. The arguments `snapshots` and `replacements` contain the
    groups in which the dataset's snapshots were created and its contents were replaced. Replacements are recorded from
    the group `first` on; it is None if there is no record.

    A replacement destroys all snapshots after the state that it keeps. So the bookmark is an earlier state if a
    snapshot between the bookmark and the next replacement still exists.
    """
    if first is None or first > bookmark:
        return None
    later = [group for group in replacements if group > bookmark]
    return not later or any(bookmark <= made < min(later) for made in snapshots)


def in_order(
    stored: Iterable[P], believed: Collection[str] | None = None, abandoned: Mapping[str, int] = NOTHING
) -> list[P]:
    """Return the backups, oldest first, independent of the clocks from which their ids come.

    Backups of one pool are ordered by transaction group, and an increment follows its base. Backups of different pools
    are ordered by sequence number. The number or id of a backup is ignored if a younger backup of the same pool has a
    smaller number or id. The argument `believed` contains the ids of trusted backups, whose order other backups cannot
    change. If `believed` is None, all backups are trusted.

    If a pool is replaced by an older copy of itself, the copy uses the same transaction groups a second time. The
    backups that were created after the copy and before the replacement are abandoned. The argument `abandoned` maps
    each of them to the group of the first backup after the replacement. The abandoned backups come before that first
    backup.
    """
    by_pool: dict[int, list[P]] = {}
    links = list(stored)
    reached = greatest_reached(link.sequence for link in links if believed is None or link.backup_id in believed)

    def place(one: P) -> tuple[int, bool, int, int, str]:
        name, number = one.backup_id, _believed(one.sequence, reached)
        return abandoned.get(name, one.createtxg), name not in abandoned, one.createtxg, number, name

    for link in sorted(links, key=place):
        by_pool.setdefault(link.pool_guid, []).append(link)
    if len(by_pool) == 1:
        return _bases_first(next(iter(by_pool.values())))
    placed: list[tuple[int, str, int, int, P]] = []
    for pool, of_pool in enumerate(by_pool.values()):
        keys = _keys(of_pool, reached, believed)
        placed += [(*key, pool, place, link) for place, (key, link) in enumerate(zip(keys, of_pool, strict=True))]
    return _bases_first([link for *_, link in sorted(placed, key=lambda entry: entry[:4])])


def with_turn(abandoned: Mapping[str, int], of_pool: Mapping[str, int], createtxg: int) -> dict[str, int]:
    """Return `abandoned`, updated for a new snapshot set with the given transaction group in the pool.

    The argument `of_pool` maps the ids of the pool's backups to their groups.
    """
    later = [name for name, made in of_pool.items() if made >= createtxg]
    return {**abandoned, **{name: min(createtxg, abandoned.get(name, createtxg)) for name in later}}


def _keys(of_pool: Sequence[PlacedLink], reached: int, believed: Collection[str] | None) -> list[tuple[int, str]]:
    """Return the numbers and ids, oldest first, that order a pool's backups among the backups of other pools.

    A backup's number and id are never greater than those of a younger backup. A backup without a number gets the number
    of the previous backup.
    """
    keys: list[tuple[int, str]] = []
    of_all = of_believed = (GREATEST_SEQUENCE, "~")
    for link in reversed(of_pool):
        is_believed = believed is None or link.backup_id in believed
        least, earliest = of_believed if is_believed else of_all
        number, name = min(_believed(link.sequence, reached), least), min(link.backup_id, earliest)
        keys.append((number, name))
        of_all = min(number or least, of_all[0]), min(name, of_all[1])
        if is_believed:
            of_believed = number or least, name
    keys.reverse()
    before = 0
    for place, (link, (number, name)) in enumerate(zip(of_pool, keys, strict=True)):
        keys[place] = (number or before, name)
        if believed is None or link.backup_id in believed:
            before = max(before, number)
    return keys


def _bases_first(ordered: Sequence[P]) -> list[P]:
    if _is_bases_first(ordered):
        return list(ordered)
    holders: dict[tuple[str, int], list[P]] = {}
    for link in ordered:
        for volume in link.volumes:
            holders.setdefault((volume.role, volume.guid), []).append(link)
    result: list[P] = []
    placed: set[str] = set()
    for link in ordered:
        waiting = [link]
        while waiting and waiting[-1].backup_id not in placed:
            volume = waiting[-1].volumes[0]
            bases = holders.get((volume.role, volume.from_guid), []) if volume.from_guid is not None else []
            above = {other.backup_id for other in waiting}
            if bases and not any(base.backup_id in placed or base.backup_id in above for base in bases):
                waiting.append(bases[0])
                continue
            while waiting:
                last = waiting.pop()
                placed.add(last.backup_id)
                result.append(last)
    return result


def _is_bases_first(ordered: Sequence[Link]) -> bool:
    """Return whether every base is stored and precedes its increments."""
    seen: set[tuple[str, int]] = set()
    for link in ordered:
        first = link.volumes[0]
        if first.from_guid is not None and (first.role, first.from_guid) not in seen:
            return False
        for volume in link.volumes:
            seen.add((volume.role, volume.guid))
    return True


def with_missing(ordered: Sequence[str], *known: Sequence[str]) -> list[str]:
    """Return the ids of `ordered`, with the missing ids inserted. Only the orders in `known` contain the missing ids.

    A missing id is inserted directly after the latest of its predecessors in its order in `known`. Without a
    predecessor, it is inserted before its successor. If it has neither, it is placed last, because its backup may be
    the newest state.
    """
    place = {name: at for at, name in enumerate(ordered)}
    added = set[str]()
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    latest: list[str] = []
    for order in known:
        reached, last, waiting = -1, "", list[str]()
        for name in order:
            if name in place:
                before.setdefault(name, []).extend(waiting)
                waiting = []
                if place[name] > reached:
                    reached, last = place[name], name
            elif name not in added:
                if last:
                    after.setdefault(last, []).append(name)
                    last = name
                else:
                    waiting.append(name)
                added.add(name)
        latest += waiting
    result: list[str] = []
    left = [*reversed(latest), *reversed([part for name in ordered for part in (*before.get(name, ()), name)])]
    while left:
        name = left.pop()
        result.append(name)
        left += reversed(after.get(name, []))
    return result


def with_unplaced(ordered: Sequence[str], unplaced: Iterable[str]) -> list[str]:
    """Return the ids of `ordered` and the unplaced ids. Each unplaced id is inserted before the first greater id.

    Use this function only for lists that are displayed to people.
    """
    result = list(ordered)
    for name in sorted(unplaced):
        result.insert(next((at for at, other in enumerate(result) if other > name), len(result)), name)
    return result


def is_after(one: str, other: str, order: Sequence[str]) -> bool:
    """Return whether backup `one` is later than backup `other` in `order`, which lists backups oldest first.

    A backup that is not in the order is unreadable, and only its id is known. In this case the two ids are compared.
    """
    if one in order and other in order:
        return order.index(one) > order.index(other)
    return one > other


class Finding(Protocol):
    """The finding of a check: its time, its damage, and its sequence number among the findings about one object."""

    @property
    def when(self) -> datetime: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def damage(self) -> tuple[str, ...]: ...


F = TypeVar("F", bound=Finding)


def latest_finding(findings: Iterable[F]) -> F | None:
    """Return the latest finding about an object; None if there is none.

    If two concurrent runs used the same number, the finding with damage counts as the latest. Findings without numbers
    are ordered by time.
    """
    listed = list(findings)
    reached = greatest_reached(one.sequence for one in listed)

    def place(one: F) -> tuple[int, bool, datetime]:
        number = _believed(one.sequence, reached)
        return number, bool(number and one.damage), one.when

    return sorted(listed, key=place)[-1] if listed else None
