"""What answers for a moment: a snapshot set of just then, one with archived binlogs replayed on it, or the nearest one before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from zsnapdb.config import Settings
from zsnapdb.errors import NotThere, PreflightError, RepositoryError
from zsnapdb.gtid import Gtids, contains
from zsnapdb.jobs.clone.create import CloneRequest, plan
from zsnapdb.jobs.clone.sources import with_volumes
from zsnapdb.jobs.instance import Instance
from zsnapdb.jobs.local_sets import local_sets
from zsnapdb.jobs.set_properties import POSITION_PROPERTY
from zsnapdb.model import Flavour, is_backup_id, parse_gtids
from zsnapdb.planning.family import family
from zsnapdb.planning.restore.steps import RestorePlan
from zsnapdb.zfs import datasets

_DAY = re.compile(r"^\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True)
class Candidate:
    """A snapshot set: when it was made (UTC, to the second) and where it stands."""

    backup_id: str
    made: datetime
    position: str


class How(StrEnum):
    """How a moment is answered for: by a snapshot set that is just that, by one with archived binlogs replayed on it, or by the nearest one before."""

    SNAPSHOT = "snapshot"
    REPLAY = "replay"
    NEAREST = "nearest"


@dataclass(frozen=True)
class Moment:
    """The snapshot set that answers for what was asked, and how.

    `made` (UTC) is of the set; `reason` says why it is only the nearest; `point` is the plan of a replay.
    """

    asked: str
    backup_id: str
    made: datetime | None
    position: str
    how: How
    reason: str = ""
    point: RestorePlan | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the answer is of just the moment that was asked for."""
        return self.how is not How.NEAREST

    def describe(self) -> str:
        """Return it in one line."""
        made = f", made {self.made:%Y-%m-%d %H:%M:%S} UTC" if self.made is not None else ""
        if self.how is How.REPLAY:
            return f"{self.backup_id} and the archived binlogs behind it up to {self.asked}: exactly what was asked"
        if self.how is How.SNAPSHOT:
            return f"{self.backup_id}{made}: exactly what was asked"
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.backup_id}{made}: the newest at or before {self.asked}; what was committed after it is not in"
            f" it{why}"
        )


def find(settings: Settings, instance: Instance, asked: str) -> Moment:
    """Return the moment `asked` stands for: latest, a backup id, a time (ISO 8601 with zone) or GTIDs.

    A time or GTIDs between snapshot sets are reached by replay where the archive reaches there; else the nearest set
    before them on this host answers, and says why. NotThere if there is none.
    """
    instance = with_volumes(instance)
    candidates = []
    for found in local_sets(instance):
        read = datasets.properties(next(iter(found.snapshots.values())).full_name, ["creation", POSITION_PROPERTY])
        made = datetime.fromtimestamp(int(read["creation"].value), UTC)
        candidates.append(Candidate(found.backup_id, made, read[POSITION_PROPERTY].value))
    named = asked == "latest" or is_backup_id(asked)
    if not named and _gtids_or_none(asked) is None:
        _time(asked)  # what is no moment at all is refused in our words
    try:
        nearest: Moment | None = choose(candidates, asked)
    except NotThere:
        if named:
            raise
        nearest = None
    if nearest is not None and nearest.is_exact:
        return nearest
    try:
        planned = plan(settings, instance, CloneRequest(owner="zsnapdb", name="past-planned", at=asked))
    except (RepositoryError, PreflightError) as error:
        if nearest is None:
            return choose(candidates, asked)
        return replace(nearest, reason=error.message)
    point = planned.source if isinstance(planned.source, RestorePlan) else None
    return Moment(asked, planned.set_id, None, "", How.REPLAY, point=point)


def choose(candidates: Sequence[Candidate], asked: str) -> Moment:
    """Return which of the sets, oldest first, answers for `asked`."""
    if not candidates:
        raise NotThere("there is no snapshot set on this host", hint="make one: `zsnapdb backup`")
    if asked == "latest" or is_backup_id(asked):
        named = [c for c in candidates if asked in ("latest", c.backup_id)]
        if not named:
            raise NotThere(
                f"no snapshot set {asked} on this host",
                hint=f"the newest are {', '.join(c.backup_id for c in candidates[-5:])}",
            )
        return _moment(asked, named[-1], exact=True)
    gtids = _gtids_or_none(asked)
    if gtids is None:
        wanted = _time(asked)
        early = [c for c in candidates if c.made <= wanted]
        # A set made within the second asked for may be from before or after the moment itself: it is not called exact.
        return _moment(asked, early[-1] if early else _too_old(asked, candidates), exact=False)
    early = [
        c
        for c in candidates
        if (stands := _gtids(c.position.rpartition(" ")[2])) is not None and contains(gtids, stands)
    ]
    chosen = early[-1] if early else _too_old(asked, candidates)
    stands = _gtids(chosen.position.rpartition(" ")[2])
    return _moment(asked, chosen, exact=stands is not None and contains(stands, gtids))


def _moment(asked: str, chosen: Candidate, *, exact: bool) -> Moment:
    return Moment(asked, chosen.backup_id, chosen.made, chosen.position, How.SNAPSHOT if exact else How.NEAREST)


def _too_old(asked: str, candidates: Sequence[Candidate]) -> Candidate:
    oldest = candidates[0]
    raise NotThere(
        f"no snapshot set on this host is at or before {asked}",
        hint=(
            f"the oldest is {oldest.backup_id}, made {oldest.made:%Y-%m-%dT%H:%M:%SZ}; older states are restored from"
            " the repository"
        ),
    )


def _gtids_or_none(asked: str) -> Gtids | None:
    # A day alone has the form of a GTID of MariaDB.
    return None if _DAY.match(asked) else _gtids(asked)


def _gtids(text: str) -> Gtids | None:
    """Return the GTIDs in the text. A MySQL GTID stands for all numbers up to it: a state has no holes."""
    for flavour in Flavour:
        try:
            found = parse_gtids(
                flavour, ",".join(_whole(part) for part in text.split(",")) if family(flavour).gtids_are_sets else text
            )
        except ValueError:
            continue
        if str(found):
            return found
    return None


def _whole(part: str) -> str:
    source, colon, number = part.rpartition(":")
    return f"{source}:1-{number}" if colon and number.isdigit() and ":" not in source and int(number) > 1 else part


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise PreflightError(
            f"{text!r} is neither a time, a backup id nor a GTID",
            hint="give latest, a backup id, GTIDs, or a time as 2026-11-20T10:00:00Z",
        ) from error
    if found.tzinfo is None:
        raise PreflightError(
            f"the time {text!r} does not say its zone",
            hint="write it as 2026-11-20T10:00:00Z, or with an offset such as +01:00",
        )
    return found.astimezone(UTC)
