"""The last value of an option counts: a move sees before the start whether its option file does."""

from __future__ import annotations

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.setup.facts import overridden
from zsnapdb.planning.setup.layout import option_file

FILE = option_file(Flavour.MARIADB, "/srv/my sql")
USED = "--user=mysql " + " ".join(
    f"--{line.replace(' = ', '=')}" for line in FILE.split("\n") if " = " in line and not line.startswith("#")
)


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("", "", ()),
        ("--datadir=/var/lib/mysql ", "", ()),
        ("", " --datadir=/srv/my sql/data/", ()),
        ("", " --datadir=/var/lib/mysql", ("datadir = /var/lib/mysql",)),
        ("", " --datadir=/srv/my sql/data2", ("datadir = /srv/my",)),
        ("", " --innodb-log-group-home-dir=./", ("innodb_log_group_home_dir = ./",)),
        ("", " --loose-log_bin=", ("log_bin = ",)),
        ("", " --old-datadir=/var/lib/mysql", ()),
    ],
)
def test_a_later_value_of_another_place_is_named(before: str, after: str, wrong: tuple[str, ...]) -> None:
    assert overridden(FILE, f"the server starts with:\n{before}{USED}{after}\n") == wrong


def test_a_file_that_the_server_does_not_read_is_named() -> None:
    assert "datadir is not set" in overridden(FILE, "--user=mysql")
