"""What a server shows of its readers is told, and what it hides from the account is named; nobody is made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.binlog_dump_clients import observe_readers
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.restore.replica_checks import RegisteredReplica

UUID = "bc4d710e-e87a-11f1-9a7c-618471ac0a2b"
MYSQL, MARIADB = "SHOW REPLICAS", "SHOW REPLICA HOSTS"


@dataclass
class Readers:
    """What a server knows of its readers, and which questions it denies to the account."""

    dumps: list[tuple[str, str, str]] = field(default_factory=list)
    listed: list[dict[str, Any]] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)
    group: list[tuple[str, int, str]] = field(default_factory=list)
    status: dict[str, str] = field(default_factory=dict)
    accounts: list[str] = field(default_factory=list)
    denied: tuple[str, ...] = ()


class AskedServer(Session):
    """A server with given readers."""

    def __init__(self, knows: Readers, form: str = MYSQL) -> None:
        self.address = Address("zsnapdb", Path("/run/server.sock"))
        self.knows, self.form = knows, form

    def query(self, sql: str, _parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if any(word in sql for word in self.knows.denied):
            raise ServerError(f"`{sql}`: Access denied (1227)", hint="")
        answers: dict[str, list[tuple[Any, ...]]] = {
            "INNODB STATUS": [("InnoDB", "", "")],
            "user_variables_by_thread": [(uuid,) for uuid in self.knows.uuids],
            "replication_group_members": list(self.knows.group),
            "processlist": list(self.knows.dumps),
            "GLOBAL STATUS": list(self.knows.status.items()),
            "user_privileges": [(account,) for account in self.knows.accounts],
            "GLOBAL VARIABLES": [("version", "8.4.3"), ("gtid_executed", f"{UUID}:1-5,\n{UUID}:7")],
        }
        return next(rows for word, rows in answers.items() if word in sql)

    def records(self, sql: str) -> list[dict[str, Any]]:
        self.query(sql) if sql in self.knows.denied else None
        return self.knows.listed

    def understands(self, statement: str) -> bool:
        return statement == self.form


DUMP = ("replica", "10.0.0.5:33012", "Source has sent all binlog to replica; waiting for more updates")
OF_MYSQL = {"Server_Id": 2, "Host": "", "Port": 3306, "Source_Id": 1, "Replica_UUID": UUID}
OF_MARIADB = {"Server_id": 2, "Host": "db2", "Port": 3306, "Master_id": 1}


def test_a_server_without_readers_shows_none() -> None:
    found = observe_readers(AskedServer(Readers(status={"wsrep_cluster_size": "0", "Slaves_connected": "0"})))
    assert (found.count, found.hidden, found.unknown) == (0, "", ())
    assert found.written == f"{UUID}:1-5,{UUID}:7"


@pytest.mark.parametrize(
    ("form", "row", "replica"),
    [
        (MYSQL, OF_MYSQL, RegisteredReplica(2, UUID, "", 3306)),
        (MARIADB, OF_MARIADB, RegisteredReplica(2, None, "db2", 3306)),
        ("SHOW SLAVE HOSTS", OF_MARIADB, RegisteredReplica(2, None, "db2", 3306)),
    ],
)
def test_a_replica_is_told_by_its_connection_and_by_what_it_said(
    form: str, row: dict[str, Any], replica: RegisteredReplica
) -> None:
    found = observe_readers(AskedServer(Readers(dumps=[DUMP], listed=[row]), form))
    assert (found.connections, found.replicas, found.count) == (("replica@10.0.0.5",), (replica,), 1)


def test_without_the_right_to_the_list_a_replica_is_known_by_the_variable_of_its_connection() -> None:
    found = observe_readers(AskedServer(Readers(dumps=[DUMP], uuids=[UUID.upper(), "no uuid"], denied=(MYSQL,))))
    assert (found.replicas, found.unknown) == ((RegisteredReplica(server_uuid=UUID),), ())


def test_what_the_account_may_not_see_is_named() -> None:
    hidden = observe_readers(AskedServer(Readers(denied=("INNODB STATUS",))))
    assert "own connections alone" in hidden.hidden
    (unknown,) = observe_readers(AskedServer(Readers(dumps=[DUMP], denied=(MYSQL, "user_variables")))).unknown
    assert "Access denied" in unknown


@pytest.mark.parametrize("name", ["Rpl_semi_sync_source_clients", "Rpl_semi_sync_master_clients", "Slaves_connected"])
def test_a_counter_of_the_server_shows_readers_whose_connections_are_hidden(name: str) -> None:
    found = observe_readers(AskedServer(Readers(status={name: "2"}, denied=("INNODB STATUS", MYSQL, "user_variables"))))
    assert (found.count, found.connections) == (2, ())


def test_the_other_servers_of_a_cluster_are_readers() -> None:
    assert observe_readers(AskedServer(Readers(status={"wsrep_cluster_size": "3"}))).count == 2
    assert observe_readers(AskedServer(Readers(group=[("db2", 3306, "ONLINE")]))).members == ("db2:3306 (ONLINE)",)


def test_what_readers_say_of_themselves_is_one_printable_line() -> None:
    row = {"Server_Id": "2; x", "Host": "db\n2\x1b[2J", "Port": None, "Replica_UUID": "' OR 1"}
    found = observe_readers(AskedServer(Readers(dumps=[("a\nb", "h\x1b:1", "")], listed=[row], accounts=["'x\n'@'%'"])))
    assert found.replicas == (RegisteredReplica(0, None, "db?2?[2J", 0),)
    assert (found.connections, found.may_read) == (("a?b@h?",), ("'x?'@'%'",))
