"""GTID sets of both server families, with exact set operations. All functions are pure.

MySQL: a set of UUID[:TAG] with intervals of transaction numbers (refman 8.4, "GTID Format and Storage"; tags since
8.3). MariaDB: one head (server, sequence) for each domain. A position contains all transactions up to its heads
(MariaDB manual, "Global Transaction ID").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Interval = tuple[int, int]  # first and last number, both inclusive

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEAD = re.compile(r"([0-9]{1,20})-([0-9]{1,20})-([0-9]{1,20})")
_INTERVAL = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")


def _normal(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the intervals sorted, with adjacent and overlapping intervals joined."""
    joined: list[Interval] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


@dataclass(frozen=True)
class GtidSet:
    """A MySQL GTID set.

    Keys are `uuid` or `uuid:tag` in lower case. Values are normalized intervals (sorted, disjoint, not adjacent).
    """

    intervals: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, Interval]]) -> GtidSet:
        """Return the set of all numbers in the (source, interval) pairs."""
        collected: dict[str, list[Interval]] = {}
        for source, interval in pairs:
            collected.setdefault(source, []).append(interval)
        return cls({source: _normal(collected[source]) for source in sorted(collected)})

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Return the set in a server's notation, such as `UUID:1-5:7,UUID:tag:3`.

        Raises ValueError with the malformed part.
        """
        pairs: list[tuple[str, Interval]] = []
        for part in text.replace("\n", "").replace(" ", "").lower().split(","):
            if not part:
                continue
            uuid, *rest = part.split(":")
            if not _UUID.fullmatch(uuid) or not rest:
                raise ValueError(f"not a GTID set: {part[:80]!r}")
            source = uuid
            for word in rest:
                if _TAG.fullmatch(word):
                    source = f"{uuid}:{word}"
                    continue
                match = _INTERVAL.fullmatch(word)
                if match is None:
                    raise ValueError(f"not an interval in a GTID set: {word[:80]!r}")
                first = int(match.group(1))
                last = int(match.group(2) or first)
                if first < 1 or last < first:
                    raise ValueError(f"not an interval in a GTID set: {word[:80]!r}")
                pairs.append((source, (first, last)))
        return cls.of(pairs)

    def _pairs(self) -> Iterable[tuple[str, Interval]]:
        return ((source, interval) for source, intervals in self.intervals.items() for interval in intervals)

    def union(self, other: GtidSet) -> GtidSet:
        following = self._followed_by(other)
        if following is not None:
            return following
        return GtidSet.of([*self._pairs(), *other._pairs()])

    def _followed_by(self, other: GtidSet) -> GtidSet | None:
        """Return the union if `other` is one interval directly after the last interval of the same source; else None.

        This is a fast path for the usual order of transactions. There may be millions of transactions.
        """
        if len(other.intervals) != 1:
            return None
        ((source, more),) = other.intervals.items()
        own = self.intervals.get(source)
        if own is None or len(more) != 1 or more[0][0] != own[-1][1] + 1:
            return None
        return GtidSet({**self.intervals, source: (*own[:-1], (own[-1][0], more[0][1]))})

    def minus(self, other: GtidSet) -> GtidSet:
        remaining: list[tuple[str, Interval]] = []
        for source, intervals in self.intervals.items():
            others, at = other.intervals.get(source, ()), 0
            for first, last in intervals:
                start = first
                # Both are sorted, so each interval of `other` is read only once.
                while at < len(others) and others[at][0] <= last:
                    if others[at][0] > start:
                        remaining.append((source, (start, others[at][0] - 1)))
                    start = max(start, others[at][1] + 1)
                    if others[at][1] > last:
                        break
                    at += 1
                if start <= last:
                    remaining.append((source, (start, last)))
        return GtidSet.of(remaining)

    def contains(self, other: GtidSet) -> bool:
        """Return whether this set contains every transaction of `other`."""
        return not other.minus(self).intervals

    def count(self) -> int:
        return sum(last - first + 1 for _, (first, last) in self._pairs())

    def __str__(self) -> str:
        return ",".join(
            source + "".join(f":{first}-{last}" if last > first else f":{first}" for first, last in intervals)
            for source, intervals in self.intervals.items()
        )


@dataclass(frozen=True)
class GtidPosition:
    """A MariaDB GTID position: the server and sequence number of the last transaction in each domain."""

    heads: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> GtidPosition:
        """Return the position in a server's notation, such as `0-1-270,5-2-9`.

        Raises ValueError with the malformed part.
        """
        heads: dict[int, tuple[int, int]] = {}
        for part in text.replace(" ", "").split(","):
            if not part:
                continue
            match = _HEAD.fullmatch(part)
            if match is None:
                raise ValueError(f"not a GTID position: {part[:80]!r}")
            domain, server, sequence = (int(word) for word in match.groups())
            if domain not in heads or sequence >= heads[domain][1]:
                heads[domain] = (server, sequence)
        return cls(dict(sorted(heads.items())))

    def contains(self, other: GtidPosition) -> bool:
        """Return whether this position contains every domain of `other`, with at least the same sequence number."""
        return all(domain in self.heads and self.heads[domain][1] >= head[1] for domain, head in other.heads.items())

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (server, sequence) in self.heads.items())


Gtids = GtidSet | GtidPosition


def contains(outer: Gtids, inner: Gtids) -> bool:
    """Return whether `outer` contains `inner`. The result is False for sets of different families."""
    if isinstance(outer, GtidSet) and isinstance(inner, GtidSet):
        return outer.contains(inner)
    if isinstance(outer, GtidPosition) and isinstance(inner, GtidPosition):
        return outer.contains(inner)
    return False


def joined(previous: Gtids | None, more: Gtids | None) -> Gtids | None:
    """Return `previous` with the transactions of `more` added.

    None means unknown GTIDs. Raises ValueError if the two sets belong to different server families.
    """
    if previous is None or more is None:
        return previous if more is None else more
    if isinstance(previous, GtidSet) and isinstance(more, GtidSet):
        return previous.union(more)
    if isinstance(previous, GtidPosition) and isinstance(more, GtidPosition):
        return GtidPosition(dict(sorted({**previous.heads, **more.heads}.items())))
    raise ValueError("one GTID set is from MySQL, the other from MariaDB")
