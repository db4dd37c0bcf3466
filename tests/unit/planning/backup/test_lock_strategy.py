"""The least lock that gives a consistent snapshot, with its reason; a wrong lock is refused."""

from __future__ import annotations

from typing import Any

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError, PreflightError
from zsnapdb.mysql import locks
from zsnapdb.planning.backup import lock_strategy
from zsnapdb.planning.backup.lock_strategy import LockChoice, LockProperties, lock_free_objections, still_enough
from zsnapdb.planning.server_facts import ServerFacts

TABLES_STATEMENT = locks.properties("percona").statement
INSTANCE = frozenset({locks.properties("instance").statement})
PERCONA = INSTANCE | {TABLES_STATEMENT}
STAGE = frozenset({locks.properties("stage").statement})


def choose(server: ServerFacts, setting: str) -> LockChoice:
    return lock_strategy.choose(server, setting, locks.STRATEGIES)


def facts(
    flavour: Flavour,
    version: str,
    statements: frozenset[str],
    engines: dict[str, int] | None = None,
    **more: Any,
) -> ServerFacts:
    return ServerFacts(
        flavour, version, None, 1, more.pop("variables", {}), engines or {"InnoDB": 3}, (), statements, **more
    )


def mysql(
    version: str = "9.7.4",
    engines: dict[str, int] | None = None,
    statements: frozenset[str] = INSTANCE,
    **more: Any,
) -> ServerFacts:
    return facts(Flavour.MYSQL, version, statements, engines, **more)


def mariadb(
    version: str = "11.8.6-MariaDB", engines: dict[str, int] | None = None, statements: frozenset[str] = STAGE
) -> ServerFacts:
    return facts(Flavour.MARIADB, version, statements, engines)


def test_mysql_with_only_innodb_takes_the_instance_lock_and_can_do_without() -> None:
    choice = choose(mysql(), "auto")
    assert choice.name == "instance"
    assert choice.fallback is not None
    assert choice.fallback.name == "none"


@pytest.mark.parametrize("version", ["8.0.36", "8.4.5", "9.7.4-2", "26.7.0", "27.1.0"])
def test_the_choice_does_not_hang_on_the_major_version(version: str) -> None:
    assert choose(mysql(version), "auto").name == "instance"


def test_mysql_with_myisam_tables_needs_the_global_read_lock() -> None:
    choice = choose(mysql(engines={"InnoDB": 12, "MyISAM": 2}), "auto")
    assert choice.name == "ftwrl"
    assert "2 MyISAM" in choice.reason


def test_tables_without_files_of_their_own_ask_for_nothing() -> None:
    assert choose(mysql(engines={"MEMORY": 1, "BLACKHOLE": 1}), "auto").name == "instance"


def test_mysql_5_7_whose_ddl_is_not_atomic_needs_the_global_read_lock() -> None:
    choice = choose(mysql("5.7.44", statements=frozenset()), "auto")
    assert choice.name == "ftwrl"
    assert "DDL is atomic from mysql 8.0.0 on" in choice.reason


def test_percona_server_with_myisam_tables_needs_no_global_read_lock() -> None:
    assert choose(mysql("8.0.36-28", {"InnoDB": 1, "MyISAM": 1}, PERCONA), "auto").name == "percona"
    assert choose(mysql("5.7.44-48", None, frozenset({TABLES_STATEMENT})), "auto").name == "percona"


def test_percona_server_that_keeps_all_keys_in_memory_cannot_use_its_table_lock() -> None:
    server = mysql("8.0.36-28", {"MyISAM": 1}, PERCONA, variables={"delay_key_write": "ALL"})
    assert choose(server, "auto").name == "ftwrl"
    with pytest.raises(PreflightError, match="delay_key_write = ALL"):
        choose(server, "percona")


def test_mariadb_takes_backup_stage_whatever_the_engines() -> None:
    assert choose(mariadb(engines={"Aria": 3, "MyISAM": 1}), "auto").name == "stage"


def test_mariadb_before_backup_stage_takes_the_global_read_lock() -> None:
    assert choose(mariadb("10.3.39-MariaDB", statements=frozenset()), "auto").name == "ftwrl"


def test_tables_whose_recovery_is_unsound_are_not_snapshotted_lock_free() -> None:
    server = mysql("8.0.30", row_versions=2)
    assert "2 table(s) with row versions" in lock_free_objections(server)[0]
    assert choose(server, "auto").fallback is None
    assert lock_free_objections(mysql("8.0.32", row_versions=2)) == ()


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (mysql(engines={"MyISAM": 1}), "1 MyISAM"),
        (mysql("5.7.44", statements=frozenset()), "DDL is atomic"),
        (mariadb("10.5.29-MariaDB"), "DDL is atomic from mariadb 10.6.1 on"),
        (mariadb(engines={"Aria": 1}), "1 Aria"),
    ],
)
def test_lock_free_is_refused_with_the_reason_where_it_would_not_be_consistent(
    server: ServerFacts, reason: str
) -> None:
    with pytest.raises(PreflightError, match="would not give a consistent backup") as caught:
        choose(server, "none")
    assert reason in caught.value.message


def test_lock_free_may_be_forced_where_it_is_consistent() -> None:
    assert choose(mariadb("10.6.1-MariaDB"), "none").name == "none"


def test_the_instance_lock_is_refused_where_it_does_not_hold_the_tables_still() -> None:
    with pytest.raises(PreflightError, match="1 MyISAM"):
        choose(mysql(engines={"MyISAM": 1}), "instance")


def test_a_table_that_was_added_since_makes_a_small_lock_too_small() -> None:
    changed = mysql(engines={"InnoDB": 1, "MyISAM": 1})
    for name, enough in (("none", False), ("instance", False), ("ftwrl", True), ("stage", True), ("percona", True)):
        assert (still_enough(LockChoice(locks.properties(name), ""), changed) is None) is enough
    assert still_enough(LockChoice(locks.properties("none"), ""), mysql()) is None


def test_a_forced_strategy_is_taken_and_says_that_it_was_forced() -> None:
    assert choose(mariadb(), "ftwrl").reason == "forced by lock.strategy"


def test_a_forced_strategy_the_server_does_not_have_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"mariadb 11\.8\.6-MariaDB does not have it"):
        choose(mariadb(), "instance")


def test_a_strategy_nobody_knows_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'bogus' is not a lock strategy") as caught:
        choose(mysql(), "bogus")
    assert caught.value.hint == "choose from auto, stage, instance, none, percona, ftwrl"


def test_a_new_strategy_takes_part_in_the_choice_by_its_properties_alone() -> None:
    freeze = LockProperties("freeze", "the server stops writing", "every write", "FREEZE", writers_wait=True)
    known = mysql(engines={"MyISAM": 1}, statements=frozenset({"FREEZE"}))
    choice = lock_strategy.choose(known, "auto", (freeze, *locks.STRATEGIES))
    assert choice.describe() == "freeze: the server stops writing"
    assert lock_strategy.choose(mysql(), "auto", (freeze, *locks.STRATEGIES)).name == "instance"


def test_every_strategy_says_what_waits_while_it_is_held() -> None:
    assert {lock.name: (lock.waits, lock.writers_wait) for lock in locks.STRATEGIES} == {
        "stage": ("commits, DDL and writes to other engines", False),
        "instance": ("DDL and account statements", False),
        "none": ("nothing", False),
        "percona": ("DDL and writes to other engines", False),
        "ftwrl": ("every write", True),
    }
    assert {lock.name: lock.waited for lock in locks.STRATEGIES} == {
        "stage": "only commits, DDL and writes to other engines",
        "instance": "only DDL and account statements",
        "none": "nothing",
        "percona": "only DDL and writes to other engines",
        "ftwrl": "every write",
    }
