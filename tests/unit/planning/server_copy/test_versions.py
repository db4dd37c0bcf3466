"""Which programs the backups of a repository need."""

from __future__ import annotations

from zsnapdb.base.model import Flavour
from zsnapdb.planning.server_copy.versions import BackupVersion, SeriesNeed, needs, series_of


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
