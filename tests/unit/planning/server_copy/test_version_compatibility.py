"""Which programs the backups of a repository need."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.server_copy.version_compatibility import (
    BackupVersion,
    SeriesNeed,
    needs,
    objection_to_upgrade,
    series_of,
)


def test_a_series_is_the_first_two_numbers_of_a_version() -> None:
    assert series_of("11.8.6-MariaDB-0+deb13u1-log") == "11.8"
    assert series_of("8.4.3-3") == "8.4"


def test_backups_are_grouped_by_the_program_they_need_the_newest_first() -> None:
    backups = [
        BackupVersion("20261101T000000Z-0001", Flavour.MARIADB, "10.11.9-MariaDB"),
        BackupVersion("20261102T000000Z-0002", Flavour.MARIADB, "10.11.14-MariaDB"),
        BackupVersion("20261103T000000Z-0003", Flavour.MARIADB, "11.8.6-MariaDB"),
    ]
    assert needs(backups) == (
        SeriesNeed(Flavour.MARIADB, "11.8", "11.8.6-MariaDB", 1, "20261103T000000Z-0003"),
        SeriesNeed(Flavour.MARIADB, "10.11", "10.11.14-MariaDB", 2, "20261102T000000Z-0002"),
    )


@pytest.mark.parametrize(
    ("recorded", "program", "why"),
    [
        ("5.7.42-log", "8.0.46-0ubuntu0.22.04.5", None),
        ("8.0.19", "8.0.46", None),
        ("8.0.46", "8.3.0", None),
        ("8.0.46", "8.4.13", None),
        ("8.4.13", "9.7.4", None),
        ("9.1.0", "9.7.4", None),
        ("9.7.4", "26.7.0", None),
        ("9.7.4", "9.7.4", None),
        ("5.7.42", "8.4.13", "MySQL upgrades them to 8.0 first"),
        ("5.7.42", "9.7.4", "MySQL upgrades them to 8.0, then 8.4 first"),
        ("8.0.46", "9.1.0", "MySQL upgrades them to 8.4 first"),
        ("8.4.13", "26.7.0", "MySQL upgrades them to 9.7 first"),
        ("8.4.13", "8.0.46", "it is older (8.0.46)"),
        ("8.0.46", "8.0.19", "it is older (8.0.19)"),
        ("8.0.46", "11.8.9-MariaDB", "it is MariaDB, the files are of MySQL"),
    ],
)
def test_mysql_upgrades_files_through_each_long_term_series(recorded: str, program: str, why: str | None) -> None:
    assert objection_to_upgrade(Flavour.MYSQL, recorded, program) == why


@pytest.mark.parametrize(
    ("recorded", "program", "why"),
    [
        ("10.5.23-MariaDB", "11.8.9-MariaDB-0+deb13u1", None),
        ("10.11.18-MariaDB", "10.6.23-MariaDB", "it is older (10.6.23-MariaDB)"),
        ("10.5.23-MariaDB", "9.7.4", "it is MySQL, the files are of MariaDB"),
    ],
)
def test_mariadb_upgrades_files_of_each_older_release(recorded: str, program: str, why: str | None) -> None:
    assert objection_to_upgrade(Flavour.MARIADB, recorded, program) == why
