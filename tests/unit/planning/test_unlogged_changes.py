"""Changes that are in no binlog are named by doctor, backups and plans; of an ordinary server nothing is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.planning.backup.test_fitness import server
from zsnapdb.mysql.probe import channel_of
from zsnapdb.planning.backup.fitness import judge_server, unlogged_changes, warnings
from zsnapdb.planning.server_facts import Channel, ServerFacts

CHANNEL = Channel("", "source.example", 3306, receiving=True, applying=True, coordinates=None)


def with_variables(**variables: str) -> ServerFacts:
    return server(variables={"log_bin": "ON", **variables})


CASES: dict[str, tuple[ServerFacts, str]] = {
    "ignored": (replace(with_variables(), binlog_ignore=("secret",)), "secret (binlog_ignore_db)"),
    "only": (
        replace(with_variables(), binlog_do=("shop",), schemas=("shop", "a", "b")),
        "the changes of a, b, and of the accounts (binlog_do_db = shop)",
    ),
    "many": (
        replace(with_variables(), binlog_ignore=tuple(f"s{number}" for number in range(11))),
        "s7 and 3 more (binlog_ignore_db)",
    ),
    "global": (with_variables(sql_log_bin="OFF"), "all changes (sql_log_bin = OFF)"),
    "init_connect": (with_variables(init_connect="SET sql_log_bin=0"), "init_connect turns sql_log_bin off"),
    "session": (with_variables(init_connect="set @@SESSION.`sql_log_bin` := OFF"), "turns sql_log_bin off"),
    "format": (with_variables(binlog_format="STATEMENT"), "other rows than the server had"),
    "format of sessions": (with_variables(init_connect="SET binlog_format='STATEMENT'"), "init_connect sets"),
    "replica": (
        replace(with_variables(log_slave_updates="OFF"), channels=(CHANNEL,)),
        "source.example:3306 (log_slave_updates = OFF)",
    ),
    "cluster": (with_variables(log_slave_updates="OFF", wsrep_on="ON"), "nodes of its cluster"),
    "filters": (
        replace(with_variables(), channels=(replace(CHANNEL, filters=("Replicate_Do_DB = shop",)),)),
        "does not have all changes of source.example:3306, and no backup of it has them (Replicate_Do_DB = shop)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_changes_outside_the_binlog_are_named_with_the_reason(case: str) -> None:
    facts, text = CASES[case]
    found = unlogged_changes(facts)
    assert [text in one.sentence for one in found] == [True]
    assert found[0].hint
    assert any(text in warning for warning in warnings(judge_server(facts, "z@/sock", forced=False)))


@pytest.mark.parametrize(
    "facts",
    [
        with_variables(),
        with_variables(binlog_format="MIXED", init_connect="SET sql_log_bin=1"),
        with_variables(log_slave_updates="OFF", wsrep_on="OFF"),
        replace(with_variables(log_replica_updates="ON", log_slave_updates="ON"), channels=(CHANNEL,)),
        replace(server(variables={"log_bin": "OFF"}), binlog_ignore=("secret",)),
    ],
)
def test_ordinary_server_has_no_finding(facts: ServerFacts) -> None:
    assert unlogged_changes(facts) == ()


def test_filters_are_read_from_the_status_of_a_replica() -> None:
    row = {"Source_Host": "a", "Source_Port": 3306, "Replicate_Do_DB": "", "Replicate_Wild_Ignore_Table": "x.%"}
    assert channel_of(row).filters == ("Replicate_Wild_Ignore_Table = x.%",)
