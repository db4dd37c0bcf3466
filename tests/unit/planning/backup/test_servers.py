"""What zsnapdb makes of the answers of each server it may meet.

Which of them were recorded, and of which build, the files in `recorded/` say.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.support.known_capabilities import KNOWN
from tests.unit.support.recorded_server import SYNTAX_ERROR, Recorded, RecordedSession, names, variables_read
from zsnapdb.base.domain_types import BinlogCoordinates, Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql import locks
from zsnapdb.mysql.probe import probe, published_position
from zsnapdb.planning.backup.fitness import Severity, judge_server, objection
from zsnapdb.planning.backup.lock_strategy import choose
from zsnapdb.planning.server_facts import Dialect, ServerFacts

INSTANCE, TABLES, STAGE = (locks.properties(name).statement for name in ("instance", "percona", "stage"))

SLAVE = Dialect("SHOW MASTER STATUS", "SHOW SLAVE STATUS", "STOP SLAVE SQL_THREAD", "START SLAVE SQL_THREAD")
MASTER_REPLICA = Dialect(
    "SHOW MASTER STATUS", "SHOW REPLICA STATUS", "STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD"
)
REPLICA = Dialect(
    "SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS", "STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD"
)
MASTER_SLAVES = Dialect(
    "SHOW MASTER STATUS", "SHOW ALL SLAVES STATUS", "STOP SLAVE SQL_THREAD", "START SLAVE SQL_THREAD"
)
SLAVES = Dialect("SHOW BINLOG STATUS", "SHOW ALL SLAVES STATUS", "STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD")
SLAVES_LOG = Dialect(
    "SHOW BINARY LOG STATUS", "SHOW ALL SLAVES STATUS", "STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD"
)

SERVERS: dict[str, tuple[Flavour, set[str], Dialect, str, str]] = {
    # name: flavour, features, statement forms, the lock with only InnoDB tables, the lock with MyISAM tables too
    "mysql-5.7.42": (Flavour.MYSQL, set(), SLAVE, "ftwrl", "ftwrl"),
    "mysql-8.0.11": (Flavour.MYSQL, {INSTANCE}, SLAVE, "instance", "ftwrl"),
    "mysql-8.0.19": (Flavour.MYSQL, {INSTANCE}, SLAVE, "instance", "ftwrl"),
    "mysql-8.0.30": (Flavour.MYSQL, {INSTANCE}, MASTER_REPLICA, "instance", "ftwrl"),
    "mysql-8.0.46": (Flavour.MYSQL, {INSTANCE}, MASTER_REPLICA, "instance", "ftwrl"),
    "mysql-8.4": (Flavour.MYSQL, {INSTANCE}, REPLICA, "instance", "ftwrl"),
    "mysql-9.7": (Flavour.MYSQL, {INSTANCE}, REPLICA, "instance", "ftwrl"),
    "mysql-26.7": (Flavour.MYSQL, {INSTANCE}, REPLICA, "instance", "ftwrl"),
    "percona-5.7": (Flavour.MYSQL, {TABLES}, SLAVE, "percona", "percona"),
    "percona-8.0": (Flavour.MYSQL, {INSTANCE, TABLES}, MASTER_REPLICA, "instance", "percona"),
    "percona-8.4": (Flavour.MYSQL, {INSTANCE, TABLES}, REPLICA, "instance", "percona"),
    "mariadb-10.3": (Flavour.MARIADB, set(), MASTER_SLAVES, "ftwrl", "ftwrl"),
    "mariadb-10.4": (Flavour.MARIADB, {STAGE}, MASTER_SLAVES, "stage", "stage"),
    "mariadb-10.5": (Flavour.MARIADB, {STAGE}, SLAVES, "stage", "stage"),
    "mariadb-10.6": (Flavour.MARIADB, {STAGE}, SLAVES, "stage", "stage"),
    "mariadb-10.11": (Flavour.MARIADB, {STAGE}, SLAVES, "stage", "stage"),
    "mariadb-11.4": (Flavour.MARIADB, {STAGE}, SLAVES, "stage", "stage"),
    "mariadb-11.8": (Flavour.MARIADB, {STAGE}, SLAVES, "stage", "stage"),
    "mariadb-11.8.9": (Flavour.MARIADB, {STAGE}, SLAVES_LOG, "stage", "stage"),
    "mariadb-12.3": (Flavour.MARIADB, {STAGE}, SLAVES, "stage", "stage"),
}
NOT_ATOMIC = ("mysql-5.7.42", "percona-5.7", "mariadb-10.3", "mariadb-10.4", "mariadb-10.5")

each_server = pytest.mark.parametrize("name", SERVERS)


def facts_of(name: str, **instead: Any) -> ServerFacts:
    """What probe() finds; `instead` replaces answers, `variables` only those named."""
    recorded = Recorded.load(name)
    if "variables" in instead:
        instead["variables"] = {**recorded.answers["variables"], **instead["variables"]}
    return probe(RecordedSession(recorded, **instead))


def verdicts(facts: ServerFacts) -> dict[str, Severity]:
    return {finding.what: finding.severity for finding in judge_server(facts, "z@/sock", forced=False)}


def test_every_file_of_answers_is_of_a_server_in_the_table() -> None:
    assert set(names()) == set(SERVERS)


@each_server
def test_the_family_and_what_it_can_do_are_found_without_looking_at_the_version(name: str) -> None:
    flavour, capabilities, dialect, _, _ = SERVERS[name]
    facts = facts_of(name)
    assert facts.flavour is flavour
    assert facts.lock_statements == capabilities
    assert facts.dialect == dialect
    assert facts.has_binlog
    assert facts.has_gtids
    assert facts.is_percona == name.startswith("percona")
    assert (facts.server_uuid is None) == (flavour is Flavour.MARIADB)
    assert facts.release == Recorded.load(name).release


@each_server
def test_the_table_files_are_found_where_the_version_lists_them(name: str) -> None:
    assert "./shop/orders.ibd" in facts_of(name).tablespace_files


@each_server
def test_a_replication_channel_is_read_whatever_its_columns_are_called(name: str) -> None:
    (channel,) = facts_of(name).channels
    assert (channel.name, channel.host, channel.port) == ("", "127.0.0.1", 1)
    assert channel.receiving
    assert channel.applying
    assert channel.coordinates == BinlogCoordinates("binlog.000007", 1234)
    assert channel.gtids


@each_server
def test_the_published_position_is_read(name: str) -> None:
    position = published_position(RecordedSession(Recorded.load(name)), facts_of(name))
    assert position.coordinates is not None
    assert position.coordinates.file.startswith("binlog.0000")
    assert position.gtids


@each_server
def test_the_lock_is_the_least_that_is_enough(name: str) -> None:
    *_, only_innodb, with_myisam = SERVERS[name]
    assert choose(facts_of(name, engines={"InnoDB": 3}), "auto", locks.STRATEGIES).name == only_innodb
    assert choose(facts_of(name, engines={"InnoDB": 3, "MyISAM": 1}), "auto", locks.STRATEGIES).name == with_myisam


@each_server
def test_no_lock_at_all_may_be_forced_only_where_ddl_is_atomic_and_recovery_sound(name: str) -> None:
    facts = facts_of(name, engines={"InnoDB": 3})
    if name in (*NOT_ATOMIC, "mysql-8.0.30"):
        with pytest.raises(PreflightError, match="would not give a consistent backup"):
            choose(facts, "none", locks.STRATEGIES)
    else:
        assert choose(facts, "none", locks.STRATEGIES).name == "none"


@each_server
def test_nothing_stands_against_a_server_with_its_own_defaults(name: str) -> None:
    # By default a replica of 5.7, or of MariaDB, does not log what it applies. All other servers here log it.
    is_off = name.startswith(("mysql-5.7", "mariadb"))
    facts = facts_of(name, variables={"log_slave_updates": "ON"} if is_off else {})
    assert objection(judge_server(facts, "z@/sock", forced=False)) is None
    warned = {what for what, severity in verdicts(facts).items() if severity is Severity.WARNING}
    assert warned == ({"row versions"} if name == "mysql-8.0.30" else set())


@each_server
def test_a_binlog_that_may_be_ahead_of_the_tables_stands_against_a_backup_everywhere(name: str) -> None:
    assert verdicts(facts_of(name, variables={"innodb_flush_log_at_trx_commit": "0"}))["redo log"] is Severity.UNFIT


@each_server
def test_a_mysql_replica_that_does_not_log_what_it_applies_stands_against_a_backup(name: str) -> None:
    off = {
        variable: "OFF"
        for variable in ("log_replica_updates", "log_slave_updates")
        if variable in Recorded.load(name).answers["variables"]
    }
    findings = judge_server(facts_of(name, variables=off), "z@/sock", forced=False)
    if SERVERS[name][0] is Flavour.MYSQL:
        assert {finding.what: finding.severity for finding in findings}["replica"] is Severity.UNFIT
        named = objection(findings).hint.split()[1]  # type: ignore[union-attr]
        assert named in off
    else:
        assert objection(findings) is None


@each_server
def test_a_disabled_redo_log_stands_against_a_backup_where_it_can_be_disabled(name: str) -> None:
    if Recorded.load(name).answers["status"]["Innodb_redo_log_enabled"] is not None:
        assert verdicts(facts_of(name, status={"Innodb_redo_log_enabled": "OFF"}))["redo log"] is Severity.UNFIT
    else:
        assert not facts_of(name).redo_disabled


@each_server
def test_prepared_xa_transactions_are_looked_for_or_it_is_said_that_the_account_may_not(name: str) -> None:
    recorded = Recorded.load(name)
    denied = recorded.answers["xa_recover"]["without any privilege"]
    assert bool(denied) == (INSTANCE in SERVERS[name][1])
    assert facts_of(name).prepared_xa == 0
    facts = facts_of(name, xa_recover={"zsnapdb": denied})
    assert verdicts(facts).get("xa") == (Severity.WARNING if denied else None)


def test_the_innodb_binlog_of_mariadb_12_3_stands_against_a_backup() -> None:
    assert verdicts(facts_of("mariadb-12.3", variables={"binlog_storage_engine": "innodb"}))["binlog"] is Severity.UNFIT


def test_tables_with_row_versions_take_the_lock_free_way_out_from_mysql_8_0_30() -> None:
    facts = facts_of("mysql-8.0.30", engines={"InnoDB": 3})
    assert facts.row_versions == 2
    assert choose(facts, "auto", locks.STRATEGIES).fallback is None
    assert (
        choose(facts_of("mysql-8.0.30", engines={"InnoDB": 3}, row_versions=0), "auto", locks.STRATEGIES).fallback
        is not None
    )


def test_percona_server_never_had_the_flaw_of_row_versions() -> None:
    flawed = facts_of("percona-8.0", engines={"InnoDB": 3}, row_versions=2, variables={"version": "8.0.30-22"})
    assert "row versions" not in verdicts(flawed)
    assert choose(flawed, "auto", locks.STRATEGIES).fallback is not None


# The files themselves.


def has(recorded: Recorded, what: str) -> bool:
    if what.startswith("information_schema."):
        return bool(recorded.answers["columns"][what.removeprefix("information_schema.")])
    if what.startswith("status "):
        return recorded.answers["status"][what.removeprefix("status ")] is not None
    return bool(recorded.answers["parser"][what] != SYNTAX_ERROR)


def known(recorded: Recorded, what: str) -> bool:
    def release(text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in text.split(".")) if text else ()

    return any(
        release(item.since) <= recorded.release and (not item.until or recorded.release < release(item.until))
        for item in KNOWN
        if item.what == what and recorded.family in item.families
    )


@each_server
def test_what_a_server_has_is_what_the_table_of_statements_says_of_its_version(name: str) -> None:
    recorded = Recorded.load(name)
    said = {item.what: known(recorded, item.what) for item in KNOWN}
    assert {what: has(recorded, what) for what in said} == said


@each_server
def test_a_known_statement_is_prepared_or_refused_as_not_preparable_and_never_run(name: str) -> None:
    assert set(Recorded.load(name).answers["parser"].values()) <= {0, SYNTAX_ERROR, 1295}


@each_server
def test_a_file_holds_only_variables_that_are_read_and_says_where_it_comes_from(name: str) -> None:
    recorded = Recorded.load(name)
    assert recorded.name == name
    assert set(recorded.answers["variables"]) <= variables_read()
    assert recorded.origin in ("recorded", "manual")
    assert ("https://" in recorded.source) == (recorded.origin == "manual")


def test_a_question_without_a_written_answer_fails_the_test() -> None:
    session = RecordedSession(Recorded.load("mysql-9.7"))
    with pytest.raises(AssertionError, match="no answer is recorded"):
        session.query("SHOW PROCESSLIST")
    with pytest.raises(AssertionError, match="no column information_schema"):
        session.query("SELECT path FROM information_schema.innodb_sys_datafiles")
    with pytest.raises(AssertionError, match="a syntax error there"):
        session.records("SHOW SLAVE STATUS")
    with pytest.raises(KeyError):
        session.understands("SHOW TABLES")
