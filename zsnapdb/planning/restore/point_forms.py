"""Parses the forms in which `--to` and `--at` specify a point in time. Pure.

A point is specified by:

- `latest`: the newest state that the backups and the archive reach.
- `latest-backup`, or a backup id.
- A time with its zone.
- A GTID: the transaction with this GTID is the last transaction in the state.
- `before-` and a GTID: the transaction with this GTID is the first transaction after the state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from zsnapdb.base.domain_types import Flavour, is_backup_id, parse_gtids
from zsnapdb.base.errors import UsageError
from zsnapdb.base.gtid import GtidSet
from zsnapdb.base.quantities import parse_duration

_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)\s*(.*)")
_DAY = re.compile(r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
_AGO = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?\s*(s|m|h|d|w)")
FIRST_YEAR, LAST_YEAR = 1970, 9900
"""The first and last accepted year. No binlog or snapshot is older, and a time plus a duration never exceeds the
calendar.
"""
_OFFSET = re.compile(r"[+-][0-9]{2}:?[0-9]{2}")


@dataclass(frozen=True)
class Latest:
    """The newest state that can be restored from the newest backup and the archive.

    With `accepts_older`, this state is accepted even if the repository contains a newer state that cannot be restored.
    """

    accepts_older: bool = False


@dataclass(frozen=True)
class AtBackup:
    """The state of a backup, without a replay. If `backup_id` is None, this is the newest backup."""

    backup_id: str | None


@dataclass(frozen=True)
class AtTime:
    """The state with all transactions that were committed at or before a moment (UTC)."""

    moment: datetime


@dataclass(frozen=True)
class AtGtids:
    """The first transaction boundary after all transactions with the given GTIDs."""

    text: str


@dataclass(frozen=True)
class BeforeGtid:
    """The transaction boundary directly before the given GTID."""

    text: str


Target = Latest | AtBackup | AtTime | AtGtids | BeforeGtid


def parse_target(text: str) -> Target:
    """Return the target of `--to`. Raises UsageError for invalid text, or for a time without a zone."""
    text = text.strip()
    if text == "latest":
        return Latest()
    if text == "latest-backup":
        return AtBackup(None)
    if is_backup_id(text):
        return AtBackup(text)
    if _TIME.fullmatch(text):
        return AtTime(parse_time(text))
    if _DAY.fullmatch(text):
        raise UsageError(
            f"{text!r} is a day and not a point in time",
            hint=(
                f"write {text}T00:00:00Z, or with another zone; if you mean a GTID of MariaDB, write it with a leading"
                f" 0: 0{text}"
            ),
        )
    before = text.startswith("before-")
    gtids = text.removeprefix("before-").strip()
    family = _family(gtids)
    if family is None or (before and _count(family, gtids) != 1):
        raise UsageError(
            f"{text!r} is not a point in time",
            hint=(
                "write latest, latest-backup, a backup id, a time such as 2026-11-20T10:00:00Z, 10m (10 minutes ago), a"
                " GTID, or before-GTID (of one transaction)"
            ),
        )
    return BeforeGtid(gtids) if before else AtGtids(gtids)


def ago(text: str, now: datetime) -> str:
    """If the text is a duration such as 10m, return `now` (UTC) minus this duration as text; else return the text.

    Raises UsageError if the result is before the first possible time.
    """
    if _AGO.fullmatch(text.strip()) is None:
        return text
    try:
        return (now - timedelta(seconds=parse_duration(text))).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError as error:
        raise UsageError(f"{text!r} is too long ago", hint="name a point in time that the backups cover") from error


def _family(text: str) -> Flavour | None:
    for flavour in Flavour:
        try:
            if text and str(parse_gtids(flavour, text)):
                return flavour
        except ValueError:
            continue
    return None


def _count(flavour: Flavour, text: str) -> int:
    parsed = parse_gtids(flavour, text)
    return parsed.count() if isinstance(parsed, GtidSet) else len(parsed.heads)


def parse_time(text: str) -> datetime:
    """Return the moment (UTC) that a text specifies.

    The text must contain the zone: Z, UTC, an offset, or a name such as Europe/Berlin. There is no default zone. Raises
    UsageError for invalid text, and for a time at the limits of the calendar.
    """
    try:
        found = _moment(text)
    except OverflowError:
        found = None
    if found is None or not FIRST_YEAR <= found.year <= LAST_YEAR:
        raise UsageError(
            f"{text!r} is not between the years {FIRST_YEAR} and {LAST_YEAR}",
            hint="name a point in time that the backups cover",
        )
    return found


def _moment(text: str) -> datetime:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time", hint="write it as 2026-11-20T10:00:00Z")
    day, clock, zone = match.groups()
    try:
        local = datetime.fromisoformat(f"{day}T{clock}")
        if not zone:
            raise UsageError(
                f"the time {text!r} does not say its zone",
                hint=f"write {day}T{clock}Z for UTC, or add an offset or a zone",
            )
        if zone.upper() in ("Z", "UTC"):
            return local.replace(tzinfo=UTC)
        if _OFFSET.fullmatch(zone):
            return datetime.fromisoformat(f"{day}T{clock}{zone}").astimezone(UTC)
        place = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"{text!r} is not a time: {error}", hint="write it as 2026-11-20T10:00:00Z") from error
    first, second = (local.replace(tzinfo=place, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first != second:
        raise UsageError(
            f"{text!r} is ambiguous, because clocks were changed: {first:%H:%M:%S} or {second:%H:%M:%S} UTC",
            hint="write the time in UTC",
        )
    return first
