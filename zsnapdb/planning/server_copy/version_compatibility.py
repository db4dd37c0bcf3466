"""Decides which versions of a server program may start on existing files of a server. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.server_copy.copy_options import LoginAccess, PathMap, ServerIdentity, option_file
from zsnapdb.planning.server_facts import release_of
from zsnapdb.planning.server_family import family, flavour_in


def objection_to(flavour: Flavour, recorded: str, program: str) -> str | None:
    """Return why a program of version `program` must not be started on files of version `recorded`; None if it may.

    Crash recovery is safe only within a series, and no server starts on files of a newer series (refman 8.4,
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
    """Return why a program of version `program` cannot upgrade files of version `recorded`; None if it can.

    The function assumes a clean shutdown of the server that wrote the files. No server can downgrade files, and a MySQL
    upgrade must not skip a long-term series.
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
    """Return the series of a version in the form used in `server.binaries`: 11.8 for 11.8.6-MariaDB."""
    return ".".join(str(number) for number in release_of(version)[:2])


@dataclass(frozen=True)
class BackupVersion:
    """A backup with the family and version of its server."""

    backup_id: str
    flavour: Flavour
    version: str


@dataclass(frozen=True)
class SeriesNeed:
    """The backups of one series: their number, the newest backup, and the newest version of their servers.

    A server program must have at least that version.
    """

    flavour: Flavour
    series: str
    version: str
    count: int
    newest: str


def needs(backups: Iterable[BackupVersion]) -> tuple[SeriesNeed, ...]:
    """Return the server programs that backups (oldest first) need, starting with the series of the newest backup."""
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


_SHOWN = 3
_SOMEBODY = ServerIdentity(
    server_id=1, port=None, folder="/zsnapdb", user="mysql", access=LoginAccess.ACCOUNTS, trusts_creators=False
)


def objections_to_files(tablespaces: Sequence[str], links: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the reasons why a copy would use files outside itself.

    The argument `tablespaces` contains the files with absolute paths in the data dictionary. The argument `links`
    contains the symbolic links with absolute targets in the data directory. Through these paths, a server on a copy
    would open the files of the source.
    """
    found = []
    if tablespaces:
        found.append(
            f"{len(tablespaces)} tablespace(s) have absolute paths in the data dictionary: {_listing(tablespaces)}"
        )
    if links:
        found.append(f"{len(links)} symbolic link(s) of the data directory have absolute targets: {_listing(links)}")
    return tuple(found)


HINT_FOR_FILES = (
    "move these tables into the data directory (rebuild them without DATA DIRECTORY): a server on a copy would open"
    " the source's files"
)


def objections_to_settings(
    flavour: Flavour, variables: Mapping[str, str], mountpoints: Collection[str], options: Sequence[str]
) -> tuple[str, ...]:
    """Return the reasons why paths in the server's settings cannot be mapped to a copy.

    The function generates the option file of a copy to find these reasons.

    - `variables`: the variables in the manifest
    - `mountpoints`: the mount points of the volumes
    - `options`: the lines of `server.options`
    """
    try:
        option_file(flavour, variables, PathMap(tuple((point, point) for point in mountpoints)), _SOMEBODY, options)
    except PreflightError as error:
        return (error.message,)
    return ()


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
