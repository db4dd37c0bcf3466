"""The current readers of a server's binlogs, and the reasons why the account may not see all readers.

The archiver of zsnapdb is not one of these readers, because it reads the binlog files directly. Accounts, hosts and
UUIDs are untrusted, so their control characters are replaced, and no decision depends on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from zsnapdb.base.errors import ServerError
from zsnapdb.base.patterns import printable
from zsnapdb.mysql.binlog.binlog_files import readers as connections
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.variables import global_variables, server_flavour
from zsnapdb.planning.restore.replica_checks import ObservedReaders, RegisteredReplica
from zsnapdb.planning.server_family import family

_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_LONGEST = 255
_LISTS = ("SHOW REPLICAS", "SHOW REPLICA HOSTS", "SHOW SLAVE HOSTS")
"""Statements that list registered replicas: in MySQL, in MariaDB from 10.5.1 on, and in older servers of both."""

_COUNTERS = ("Rpl_semi_sync_source_clients", "Rpl_semi_sync_master_clients", "Slaves_connected")
"""Counters of connected semi-synchronous replicas, or of MariaDB's replicas. Every account can read these counters."""


def observe_readers(session: Session) -> ObservedReaders:
    """Return the current readers of the server's binlogs, if the account can see them. Change nothing on the server.

    Raises ServerError if the server does not answer.
    """
    hidden = _hides_connections(session)
    reading = tuple(f"{_name(one.user)}@{_host(one.host)}" for one in connections(session))
    status = _status(session)
    counted = max((_number(status.get(name.lower())) for name in _COUNTERS), default=0)
    replicas, unknown = _registered(session, is_needed=bool(reading) or counted > 0)
    own = family(server_flavour(session)).executed_variable
    return ObservedReaders(
        connections=reading,
        replicas=replicas,
        members=(*_group(session), *_cluster(status)),
        counted=counted,
        may_read=_accounts(session),
        hidden=hidden,
        unknown=unknown,
        written=global_variables(session, (own,)).get(own, "").replace("\n", ""),
    )


def executed_gtids(session: Session) -> str:
    """Return the GTIDs of the server's own and replicated transactions; empty if the server has no GTIDs.

    A MariaDB replica does not necessarily write replicated transactions to its binlog.
    """
    own = family(server_flavour(session)).executed_variable
    names = (own, "gtid_slave_pos")
    found = global_variables(session, names)
    return ",".join(found[name].replace("\n", "") for name in names if found.get(name))


@dataclass(frozen=True)
class ReplicaIdentity:
    """The identity with which a replica registers on its source. MariaDB has no `server_uuid`."""

    server_id: int
    server_uuid: str | None
    port: int


def identity(session: Session) -> ReplicaIdentity:
    """Return the identity with which the session's server would register as a replica."""
    found = global_variables(session, ("server_id", "server_uuid", "port", "report_port"))
    port = _number(found.get("report_port")) or _number(found.get("port"))
    return ReplicaIdentity(int(found["server_id"]), found.get("server_uuid"), port)


def _name(text: object) -> str:
    return printable(str(text))[:_LONGEST]


def _host(text: str) -> str:
    """Return the host of a connection without the port, which differs for each connection."""
    host, _, port = text.rpartition(":")
    return _name(host if host and port.isdecimal() else text)


def _number(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() else 0


def _hides_connections(session: Session) -> str:
    """Return why the process list may lack other accounts' connections; empty if the list is complete.

    Without PROCESS, the server lists only the account's own connections and reports no error. No table shows whether a
    role gives the account this privilege. Therefore this function runs a statement that requires PROCESS (refman 8.4
    and MariaDB manual, "SHOW ENGINE").
    """
    try:
        session.query("SHOW ENGINE INNODB STATUS")
    except ServerError as error:
        return f"the account sees its own connections alone ({printable(error.message)})"
    return ""


def _registered(session: Session, *, is_needed: bool) -> tuple[tuple[RegisteredReplica, ...], tuple[str, ...]]:
    """Return the registered replicas, and the reasons why some replicas are not visible.

    To list replicas, an account needs REPLICATION SLAVE on MySQL, or REPLICATION MASTER ADMIN on MariaDB (refman 8.4,
    "SHOW REPLICAS"; MariaDB manual, "SHOW REPLICA HOSTS").
    """
    statement = next((text for text in _LISTS if session.understands(text)), None)
    if statement is None:
        return (), ()
    try:
        rows = session.records(statement)
    except ServerError as error:
        by_uuid = _by_uuid(session) if is_needed else ()
        why = f"the server_id and the UUID of the readers cannot be seen: {printable(error.message)}"
        return by_uuid, (why,) if is_needed and not by_uuid else ()
    return tuple(_replica(row) for row in rows), ()


def _by_uuid(session: Session) -> tuple[RegisteredReplica, ...]:
    """Return the replicas with a UUID in the performance schema. A MySQL replica sets its UUID as a user variable.

    The result is empty on MariaDB, and on servers without an active performance schema.
    """
    try:
        rows = session.query(
            "SELECT DISTINCT CAST(v.variable_value AS CHAR) FROM performance_schema.user_variables_by_thread v JOIN"
            " performance_schema.threads t ON t.thread_id = v.thread_id WHERE t.processlist_command IN ('Binlog Dump',"
            " 'Binlog Dump GTID') AND v.variable_name IN ('replica_uuid', 'slave_uuid')"
        )
    except ServerError:
        return ()
    return tuple(RegisteredReplica(server_uuid=str(uuid).lower()) for (uuid,) in rows if _UUID.fullmatch(str(uuid)))


def _replica(row: dict[str, Any]) -> RegisteredReplica:
    uuid = next((str(row[name]) for name in ("Replica_UUID", "Slave_UUID") if row.get(name)), "")
    return RegisteredReplica(
        server_id=_number(row.get("Server_Id", row.get("Server_id"))),
        server_uuid=uuid.lower() if _UUID.fullmatch(uuid) else None,
        host=_name(row.get("Host") or ""),
        port=_number(row.get("Port")),
    )


def _status(session: Session) -> dict[str, str]:
    """Return the server's counters of binlog readers, by lower-case name. Only running plugins have counters."""
    names = ", ".join(f"'{name}'" for name in (*_COUNTERS, "wsrep_cluster_size"))
    rows = session.query(f"SHOW GLOBAL STATUS WHERE variable_name IN ({names})")
    return {str(name).lower(): str(value) for name, value in rows}


def _cluster(status: dict[str, str]) -> tuple[str, ...]:
    """Return the other nodes of the Galera cluster."""
    return ("a node of its Galera cluster",) * (_number(status.get("wsrep_cluster_size")) - 1)


def _group(session: Session) -> tuple[str, ...]:
    """Return the other members of the replication group; empty if the server has no table of group members."""
    try:
        rows = session.query(
            "SELECT member_host, member_port, member_state FROM performance_schema.replication_group_members"
            " WHERE member_id <> '' AND member_id <> @@server_uuid AND member_state <> 'OFFLINE'"
        )
    except ServerError:
        return ()
    return tuple(f"{_name(host)}:{_number(port)} ({_name(state)})" for host, port, state in rows)


def _accounts(session: Session) -> tuple[str, ...]:
    """Return the accounts that can read the binlogs. Administrators, who can also stop the server, are omitted."""
    rows = session.query(
        "SELECT grantee FROM information_schema.user_privileges WHERE REPLACE(grantee, CHAR(39), '') <> CURRENT_USER()"
        " GROUP BY grantee HAVING SUM(privilege_type = 'REPLICATION SLAVE') > 0"
        " AND SUM(privilege_type = 'SHUTDOWN') = 0 ORDER BY grantee"
    )
    return tuple(_name(row[0]) for row in rows)
