"""The least lock that gives a consistent snapshot, with its reason."""

from __future__ import annotations

import pytest

from zsnapdb.errors import PreflightError
from zsnapdb.model import Flavour
from zsnapdb.planning.strategy import choose


def test_mysql_with_only_innodb_needs_no_more_than_the_instance_lock() -> None:
    assert choose(Flavour.MYSQL, {"InnoDB": 12}, "auto").name == "instance"


def test_mysql_with_myisam_tables_needs_the_global_read_lock() -> None:
    choice = choose(Flavour.MYSQL, {"InnoDB": 12, "MyISAM": 2}, "auto")
    assert choice.name == "ftwrl"
    assert "2 MyISAM" in choice.reason


def test_tables_without_files_of_their_own_ask_for_nothing() -> None:
    assert choose(Flavour.MYSQL, {"MEMORY": 1, "BLACKHOLE": 1}, "auto").name == "instance"


def test_mariadb_takes_backup_stage_whatever_the_engines() -> None:
    assert choose(Flavour.MARIADB, {"Aria": 3, "MyISAM": 1}, "auto").name == "stage"


def test_a_forced_strategy_is_taken_and_says_that_it_was_forced() -> None:
    assert choose(Flavour.MARIADB, {}, "ftwrl").reason == "forced by lock.strategy"


def test_a_forced_strategy_the_server_does_not_have_is_refused() -> None:
    with pytest.raises(PreflightError, match="does not exist on mariadb"):
        choose(Flavour.MARIADB, {}, "instance")
