"""Limits of a subject and of its projects, and their current use, as pure functions.

For the limit on bytes, each clone counts as many bytes as its quota allows it to write. ZFS enforces the quotas, so the
clones together stay below the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.patterns import is_same
from zsnapdb.base.quantities import format_duration, size
from zsnapdb.config.serve import ServeSettings
from zsnapdb.jobs.dataset_copies.properties import owner_text

_MOST_NAMED = 20


class LimitKind(StrEnum):
    """The quantities for which limits exist."""

    CLONES = "clones"
    BYTES = "bytes"
    RUNNING = "running"


@dataclass(frozen=True)
class CountedClone:
    """Facts for the check of limits: a clone's owner (from its properties) and how many bytes it may write.

    `servers` is the number of running servers for the clone: its own server, and servers that compare two of its
    states.
    """

    name: str
    owner: str
    most_bytes: int
    servers: int


@dataclass(frozen=True)
class CloneLimit:
    """Maximum of a quantity that a subject, or all subjects of a project together, may use at the same time.

    The limit applies to `who`, a subject or a project. `subject` sends the request.
    """

    thing: LimitKind
    most: int
    setting: str
    who: str
    subject: str
    is_project: bool = False

    def used_by(self, clones: Sequence[CountedClone]) -> list[CountedClone]:
        """Return the clones to which the limit applies."""
        mine = [one for one in clones if self._is_of(one.owner)]
        return [one for one in mine if one.servers] if self.thing is LimitKind.RUNNING else mine

    def count(self, clones: Sequence[CountedClone]) -> int:
        """Return how much of the limited quantity the given clones use."""
        match self.thing:
            case LimitKind.CLONES:
                return len(clones)
            case LimitKind.RUNNING:
                return sum(one.servers for one in clones)
            case LimitKind.BYTES:
                return sum(one.most_bytes for one in clones)

    def _is_of(self, owner: str) -> bool:
        return is_in_project(owner, self.who) if self.is_project else is_same(owner, owner_text(self.who))


@dataclass(frozen=True)
class LongestLease:
    """The longest lease that a subject may request, in seconds, and the setting that limits it."""

    seconds: float
    setting: str


@dataclass(frozen=True)
class LimitRefusal:
    """A refusal because a limit is reached, with the limit and its current use."""

    message: str
    hint: str


@dataclass(frozen=True)
class AdmittedClone:
    """The permission for one more clone, and how many bytes it may write; None means the usual quota."""

    most_bytes: int | None


def is_in_project(subject: str, project: str) -> bool:
    """Return whether the subject is the project or belongs to it: `ci:shop/web` belongs to `ci:shop`."""
    return is_same(subject, project) or subject.casefold().startswith(f"{project}/".casefold())


def limits_of(subject: str, settings: ServeSettings) -> tuple[CloneLimit, ...]:
    """Return every limit that applies to the subject's clones."""
    thing = LimitKind
    own = (
        (thing.CLONES, settings.per_subject, "serve.per_subject"),
        (thing.BYTES, settings.bytes_per_subject, "serve.bytes_per_subject"),
        (thing.RUNNING, settings.running_per_subject, "serve.running_per_subject"),
    )
    found = [CloneLimit(kind, most, setting, subject, subject) for kind, most, setting in own if most is not None]
    for project, limits in sorted(settings.project.items()):
        if is_in_project(subject, project):
            shared = ((thing.CLONES, limits.clones), (thing.BYTES, limits.bytes), (thing.RUNNING, limits.running))
            found += [
                CloneLimit(kind, most, f'serve.project."{project}".{kind}', project, subject, is_project=True)
                for kind, most in shared
                if most is not None
            ]
    return tuple(found)


def longest_lease(subject: str, settings: ServeSettings) -> LongestLease:
    """Return the longest permitted lease of the subject's clones.

    The shortest of the host's and the projects' limits applies.
    """
    of_projects = (
        LongestLease(limits.longest_lease, f'serve.project."{project}".longest_lease')
        for project, limits in settings.project.items()
        if limits.longest_lease is not None and is_in_project(subject, project)
    )
    return min((LongestLease(settings.longest_lease, "serve.longest_lease"), *of_projects), key=lambda one: one.seconds)


def admitted(
    limits: Sequence[CloneLimit], clones: Sequence[CountedClone], usual_bytes: int, least: int
) -> AdmittedClone | LimitRefusal:
    """Return the quota of one more clone, or the refusal because of a limit.

    `clones` are all clones that exist or are being created. `usual_bytes` is a clone's quota if no limit applies; 0
    means no quota. `least` is the smallest usable quota. Both are in bytes.
    """
    most_bytes = None
    for limit in limits:
        used = limit.used_by(clones)
        if limit.thing is not LimitKind.BYTES:
            if limit.count(used) >= limit.most:
                return _reached(limit, used)
            continue
        left = limit.most - limit.count(used)
        if left < least:
            return _reached(limit, used)
        if not usual_bytes or left < usual_bytes:
            most_bytes = left if most_bytes is None else min(most_bytes, left)
    return AdmittedClone(most_bytes)


def may_run(
    limits: Sequence[CloneLimit], clones: Sequence[CountedClone], name: str, owner: str, servers: int
) -> LimitRefusal | None:
    """Return the limit that would be exceeded if the clone had this number of running servers.

    The result is None if no limit would be exceeded.
    """
    for limit in limits:
        used = [one for one in limit.used_by(clones) if (one.name, one.owner) != (name, owner)]
        if limit.thing is LimitKind.RUNNING and limit.count(used) + servers > limit.most:
            return _reached(limit, used)
    return None


def may_compare(owner: str, of_owner: int, of_all: int, settings: ServeSettings) -> LimitRefusal | None:
    """Return why no further comparison of the owner's clones may start now; None if a comparison may start.

    `of_owner` is the number of running comparisons of the owner's clones, and `of_all` is the number for all clones.
    """
    wait, most = "wait until one has ended", settings.comparisons
    if of_owner >= (own := settings.comparisons_per_subject):
        said = f"{owner} has {of_owner} comparisons running, and serve.comparisons_per_subject is {own}"
        return LimitRefusal(said, wait)
    if of_all >= most:
        return LimitRefusal(f"as many comparisons are running as serve.comparisons allows, {most}", wait)
    return None


def _reached(limit: CloneLimit, used: Sequence[CountedClone]) -> LimitRefusal:
    """Return the refusal. It names the subject's own clones, but no clones of other subjects in the project."""
    own = [one for one in used if is_same(one.owner, owner_text(limit.subject))]
    count, is_bytes = limit.count(own), limit.thing is LimitKind.BYTES
    has = f"clones that may write {size(count)}" if is_bytes else f"{count} clones"
    if limit.thing is LimitKind.RUNNING:
        has = f"{count} running servers of clones"
    most = size(limit.most) if is_bytes else str(limit.most)
    shown = sorted(own, key=lambda one: one.name)[:_MOST_NAMED]
    names = ", ".join(f"{one.name}: {size(one.most_bytes)}" if is_bytes else one.name for one in shown)
    listed = f" ({names})" if names else ""
    which = f"the project {limit.who} has as much as it may have; " if limit.is_project else ""
    return LimitRefusal(f"{which}{limit.subject} has {has}{listed}, and {limit.setting} is {most}", "destroy one")


def objection_to_lease(asked: str, seconds: float, longest: LongestLease) -> LimitRefusal | None:
    """Return why a lease or protection of `seconds` is not permitted; None if it is permitted."""
    # Command arguments are rounded to milliseconds. A protection of 0 s would end the current protection.
    if 0.001 <= seconds <= longest.seconds:
        return None
    return LimitRefusal(
        f"{asked}, for a lease or protection, is not between 0 and {format_duration(longest.seconds)}",
        f"ask for a shorter one; {longest.setting} is the limit",
    )
