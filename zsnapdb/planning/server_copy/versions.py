"""Which server program may be started on which server's files. Pure. This module alone decides it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zsnapdb.base.model import Flavour
from zsnapdb.planning.facts import release_of
from zsnapdb.planning.family import family, flavour_in


def objection_to(flavour: Flavour, recorded: str, program: str) -> str | None:
    """Return why a program of version `program` must not be started on files of version `recorded`; None if it may.

    Crash recovery is only sure within a series, and no server starts on files a newer one wrote (refman 8.4,
    "Downgrading"; MariaDB manual, "Downgrading between Major Versions").
    """
    if flavour_in(program) is not flavour:
        return f"it is {family(flavour_in(program)).title}, the files are of {flavour}"
    old, new = release_of(recorded), release_of(program)
    if old[:2] != new[:2]:
        return f"it is of another series ({program}) than the server of the files ({recorded})"
    if new < old:
        return f"it is older ({program}) than the server of the files ({recorded})"
    return None


def objection_to_upgrade(flavour: Flavour, recorded: str, program: str) -> str | None:
    """Return why a program of version `program` cannot upgrade files of version `recorded`; None if it may.

    The files are those of a server that was shut down. No server goes back, and MySQL skips no long-term series.
    """
    if flavour_in(program) is not flavour:
        return f"it is {family(flavour_in(program)).title}, the files are of {family(flavour).title}"
    old, new = release_of(recorded), release_of(program)
    if new < old:
        return f"it is older ({program})"
    between = [series for series in family(flavour).long_term_series if old[:2] < series < new[:2]]
    if between:
        path = ", then ".join(f"{major}.{minor}" for major, minor in between)
        return f"{family(flavour).title} upgrades them to {path} first"
    return None


def series_of(version: str) -> str:
    """Return the series of a version, as `server.binaries` names it: 11.8 for 11.8.6-MariaDB."""
    return ".".join(str(number) for number in release_of(version)[:2])


@dataclass(frozen=True)
class BackupVersion:
    """A backup and the server that it was made of."""

    backup_id: str
    flavour: Flavour
    version: str


@dataclass(frozen=True)
class SeriesNeed:
    """The backups of one series: how many, the newest, and the newest version: no program may be older than that."""

    flavour: Flavour
    series: str
    version: str
    count: int
    newest: str


def needs(backups: Iterable[BackupVersion]) -> tuple[SeriesNeed, ...]:
    """Return what programs the backups need, the series of the newest backup first. `backups` are oldest first."""
    groups: dict[tuple[Flavour, str], list[BackupVersion]] = {}
    for backup in backups:
        series = (backup.flavour, series_of(backup.version))
        # The series of the newest backup comes last.
        groups[series] = [*groups.pop(series, []), backup]
    return tuple(
        SeriesNeed(
            flavour,
            series,
            max((member.version for member in members), key=release_of),
            len(members),
            members[-1].backup_id,
        )
        for (flavour, series), members in reversed(groups.items())
    )
