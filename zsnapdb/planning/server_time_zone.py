"""The time zone of a server's process, which sessions use if `time_zone` has its default value `SYSTEM`. Pure.

The C library reads the zone from the environment variable TZ, or else from /etc/localtime (tzset(3)). So if the zones
of a copy and of its source differ, local times differ, and replayed statements write different rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

INSTANTS = tuple(
    f"{year}-{month}-01 00:00:00"
    for year in (1975, 1985, 1995, 2005, 2015, 2020, 2025, 2026, 2027, 2030, 2036)
    for month in ("01", "07")
)
"""The times (UTC) for which a zone's offsets are recorded. Only append to this list, because manifests depend on its
order.
"""

_FOLDERS = ("/usr/share/zoneinfo/", "/usr/lib/zoneinfo/", "/usr/share/lib/zoneinfo/", "/etc/zoneinfo/")
_FILE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z][A-Za-z0-9_+-]{0,31}){0,3}")
_LOCAL = ("localtime", "posixrules", "Factory")
"""Names of zone files whose content differs between hosts."""
_TIME = r"[+-]?[0-9]{1,3}(:[0-9]{2}){0,2}"
_ABBREVIATION = r"([A-Za-z]{3,16}|<[A-Za-z0-9+-]{3,16}>)"
_DATE = rf"(M[0-9]{{1,2}}\.[0-9]\.[0-9]|J?[0-9]{{1,3}})(/{_TIME})?"
_RULE = re.compile(rf"{_ABBREVIATION}{_TIME}({_ABBREVIATION}({_TIME})?,{_DATE},{_DATE})?")
"""The pattern of a zone without a file (tzset(3), "POSIX format"), such as CET-1CEST,M3.5.0,M10.5.0/3."""


def is_file_name(text: str) -> bool:
    """Return whether the text is a zone name that means the same on every host, such as Europe/Berlin."""
    return _FILE.fullmatch(text) is not None and text not in _LOCAL


def is_rule(text: str) -> bool:
    """Return whether the text describes a zone by its offsets and the dates on which they change."""
    return _RULE.fullmatch(text) is not None


def named_zone(text: str) -> str | None:
    """Return the zone in a TZ value or in the link target of /etc/localtime; None if other hosts may not know it."""
    path = text.removeprefix(":")
    name = next((path.removeprefix(folder) for folder in _FOLDERS if path.startswith(folder)), path)
    return name if is_file_name(name) or is_rule(name) else None


def _zone(text: str) -> str:
    if not (is_file_name(text) or is_rule(text)):
        raise ValueError(f"{text[:80]!r} is not the name of a time zone")
    return text


class ServerZone(BaseModel):
    """The zone of a server's process: its name, if known, and its offset in seconds east of UTC at each of `INSTANTS`.

    The field `is_default` is set if the global variable time_zone is SYSTEM. In this case, sessions use this zone
    unless they set a different one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    name: Annotated[str, AfterValidator(_zone)] | None = None
    offsets: Annotated[tuple[Annotated[int, Field(gt=-100_000, lt=100_000)], ...], Field(max_length=64)]
    is_default: bool = True

    def describe(self) -> str:
        shown = dict(zip(INSTANTS, self.offsets, strict=False))
        return self.name or f"UTC{_hours(shown.get('2026-01-01 00:00:00', 0))} (its name is not known)"


@dataclass(frozen=True)
class HostZones:
    """The offsets of the server's zone (None if this host does not know it), and the offsets of this host's zone."""

    named: tuple[int, ...] | None
    local: tuple[int, ...] | None


def given_zone(zone: ServerZone | None, here: HostZones) -> str | None:
    """Return the zone that must be set for a server on a copy; None if the server starts with the zone of this host."""
    return zone.name if zone is not None and here.named is not None else None


def expected_offsets(here: HostZones) -> tuple[int, ...]:
    """Return the offsets that a server on this host uses if it is started with the zone of `given_zone`."""
    return here.named or here.local or ()


def zone_objection(zone: ServerZone, here: HostZones) -> str | None:
    """Return why a server on this host cannot use the zone; None if it can, or if the name of the zone is unknown."""
    is_here = zone.name is None or here.named is not None or difference(zone.offsets, here.local or ()) is None
    if is_here or not zone.is_default:
        return None
    return f"the server had the time zone {zone.name}, which this host does not know"


def zone_notes(zone: ServerZone, here: HostZones) -> tuple[str, ...]:
    """Return notes about differences between local times on a copy and on its source; empty if there are none."""
    when = difference(zone.offsets, expected_offsets(here))
    if when is None:
        return ()
    cause = (
        "a copy has the time zone of this host, not that of the source's process, which is"
        f" {zone.name or 'not known by name'}"
        if zone.name is None or here.named is None
        else f"the data of the time zone {zone.name} on this host are of another release than the source's"
    )
    return (f"{cause}; local times differ {when}: set default_time_zone in server.options to show those of the source",)


def difference(wanted: Sequence[int], seen: Sequence[int]) -> str | None:
    """Return a text with the first time at which two zones differ and the two offsets; None if they do not differ."""
    if not seen:
        return "always: this host's zone cannot be read"
    for instant, one, other in zip(INSTANTS, wanted, seen, strict=False):
        if one != other:
            return f"on {instant[:10]} UTC{_hours(one)} at the source, UTC{_hours(other)} here"
    return None


def unit_line(zone: ServerZone, here: HostZones) -> str | None:
    """Return the line of a systemd unit that sets the server's zone; None if this host already uses that zone."""
    if zone.name is None or difference(zone.offsets, here.local or ()) is None:
        return None
    return f"Environment=TZ={zone.name}"


def _hours(seconds: int) -> str:
    minutes, rest = divmod(abs(seconds), 60)
    tail = f":{rest:02d}" if rest else ""
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}{tail}"
