"""Controls a server's replication channels, sets up a GTID replica, reads its lag, and tests replication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import Gtids
from zsnapdb.base.patterns import is_loopback
from zsnapdb.mysql.probe import channels, flavour_and_dialect
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.tls import NO_SETTINGS, Tls, TlsMode, own_authorities
from zsnapdb.mysql.variables import refuse_writes_of_users
from zsnapdb.planning.clone import topology
from zsnapdb.planning.server_facts import Dialect
from zsnapdb.planning.server_family import family


def stop_applier(session: Session, flavour: Flavour, dialect: Dialect, names: Iterable[str]) -> None:
    """Stop the appliers of the named channels, after each applier has finished its running transaction."""
    for name in names:
        session.query(_of_channel(flavour, dialect.stop_applier, name))


def start_applier(session: Session, flavour: Flavour, dialect: Dialect, names: Iterable[str]) -> None:
    """Start the appliers of the named channels.

    If an applier is being stopped, the server first waits until it has stopped.
    """
    for name in names:
        session.query(_of_channel(flavour, dialect.start_applier, name))


def _of_channel(flavour: Flavour, statement: str, name: str) -> str:
    """Return the statement with the clause for one channel. The default channel has an empty name."""
    value = "'" + name.replace("'", "''") + "'"
    return (
        f"{statement.removesuffix(' SQL_THREAD')} {value} SQL_THREAD"
        if family(flavour).names_connections
        else f"{statement} FOR CHANNEL {value}"
    )


def open_temporary_tables(session: Session) -> int:
    """Return the number of temporary tables that the replica holds open for its source."""
    # The variable has an old and a new name. Some servers show both names.
    rows = session.query(
        "SHOW GLOBAL STATUS WHERE variable_name IN ('Slave_open_temp_tables', 'Replica_open_temp_tables')"
    )
    return max((int(row[1]) for row in rows), default=0)


def forget_channels(session: Session) -> None:
    """Remove every replication channel, including credentials."""
    flavour, dialect = flavour_and_dialect(session)
    word = "REPLICA" if "REPLICA" in dialect.stop_applier else "SLAVE"
    configured = channels(session, dialect)
    if family(flavour).names_connections:
        for channel in configured:
            if channel.name:
                session.query(f"RESET {word} %s ALL", (channel.name,))
            else:
                session.query(f"RESET {word} ALL")
    elif configured:
        session.query(f"RESET {word} ALL")


def continue_applier(session: Session) -> None:
    """Resume replication at the position where it was stopped. If the server has no source, change nothing."""
    _, dialect = flavour_and_dialect(session)
    if channels(session, dialect):
        session.query(dialect.start_applier.removesuffix(" SQL_THREAD"))
        refuse_writes_of_users(session)


def follow_neighbour(session: Session, port: int, user: str, password: str) -> None:
    """Make the server a replica of the server on this local port, starting at the current positions of both servers."""
    flavour, _ = flavour_and_dialect(session)
    if family(flavour).names_connections:
        session.query("SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_binlog_pos")
    statements = topology.replica_statements(
        flavour,
        knows_replica=session.understands("START REPLICA SQL_THREAD") and session.understands("SHOW REPLICA STATUS"),
    )
    session.query(statements.change, (port, user, password))
    session.query(statements.start)
    # With this variable, a replica refuses writes by accounts without a special privilege.
    refuse_writes_of_users(session)


@dataclass(frozen=True)
class ReplicationSource:
    """A replication source, the account for the replica, and the TLS settings of the connection."""

    host: str
    port: int
    user: str
    password: str
    tls: Tls = NO_SETTINGS

    def protection(self, flavour: Flavour) -> tuple[str, tuple[object, ...]]:
        """Return the TLS clauses of the statement that sets the source, and the parameters of these clauses.

        A replica has no mode in which TLS is optional. Therefore it requires TLS, unless TLS is off, or the source is
        on loopback and no CA is set. Certificates are verified as in the sessions of zsnapdb. MySQL requests a public
        key only without TLS, and only if zsnapdb's sessions may do so (refman 8.4, "CHANGE REPLICATION SOURCE TO
        Statement"). Since 11.4, MariaDB verifies a certificate unless the statement turns the verification off (MariaDB
        manual, "CHANGE MASTER TO").
        """
        word = "MASTER" if flavour is Flavour.MARIADB else "SOURCE"
        mode, verifies = self.tls.mode_to(self.host), self.tls.verifies(self.host)
        is_open = mode is TlsMode.OFF or (not verifies and is_loopback(self.host))
        if is_open:
            off = f", {word}_SSL = 0, {word}_SSL_VERIFY_SERVER_CERT = 0" if mode is TlsMode.OFF else ""
            may_ask = flavour is Flavour.MYSQL and self.tls.may_send_to(self.host)
            return (off + (", GET_SOURCE_PUBLIC_KEY = 1" if may_ask else ""), ())
        given = {name: str(file) for name, file in self._files().items()}
        names = "".join(f", {word}_SSL_{name} = %s" for name in given)
        # This option requires a certificate that names the host. Without the option, MySQL verifies only the CA.
        checks = verifies and (self.tls.checks_name or flavour is Flavour.MARIADB)
        return f", {word}_SSL = 1{names}, {word}_SSL_VERIFY_SERVER_CERT = {int(checks)}", tuple(given.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the local files that the replica's server reads to connect to its source."""
        return () if self.tls.mode_to(self.host) is TlsMode.OFF else tuple(self._files().values())

    def _files(self) -> dict[str, Path]:
        authorities = (self.tls.ca or own_authorities()) if self.tls.verifies(self.host) else None
        files = {"CA": authorities, "CERT": self.tls.cert, "KEY": self.tls.key}
        return {name: file for name, file in files.items() if file is not None}


def replica_options(flavour: Flavour) -> tuple[str, ...]:
    """Return the option file lines for the first start of a replica. All other lines must precede these lines."""
    if flavour is Flavour.MARIADB:
        return ("log_slave_updates=ON", "relay_log_recovery=ON")
    return ("relay_log_recovery=ON", "loose_log_replica_updates=ON")


def lasting_replica_options(flavour: Flavour) -> tuple[str, ...]:
    """Return the option file lines for all starts of a replica after the first start.

    With these lines, the replica accepts writes only from its source.
    """
    if flavour is Flavour.MARIADB:
        return (*replica_options(flavour), "read_only=ON", "skip_slave_start=OFF")
    return (*replica_options(flavour), "super_read_only=ON", "loose_skip_replica_start=OFF")


def refuse_writes(session: Session, flavour: Flavour) -> None:
    """Make the running replica refuse all writes except those from its source."""
    session.query("SET GLOBAL read_only = ON" if flavour is Flavour.MARIADB else "SET GLOBAL super_read_only = ON")


def follow_source(session: Session, flavour: Flavour, source: ReplicationSource, gtids: Gtids) -> None:
    """Start replication from the source. The server already has the transactions `gtids`.

    Other sources are removed. On MySQL, the replica's binlogs are reset with gtid_purged = `gtids` (refman 8.4,
    "Setting Up Replication Using GTIDs"). On MariaDB, gtid_slave_pos is set to `gtids` (MariaDB manual, "Global
    Transaction ID").
    """
    protection, files = source.protection(flavour)
    if flavour is Flavour.MARIADB:
        session.query("STOP ALL SLAVES")
        session.query("RESET SLAVE ALL")
        session.query("SET GLOBAL gtid_slave_pos = %s", (str(gtids),))
        session.query(
            "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = %s, MASTER_PASSWORD = %s,"
            f" MASTER_USE_GTID = slave_pos{protection}",
            (source.host, source.port, source.user, source.password, *files),
        )
        session.query("START SLAVE")
        return
    session.query("STOP REPLICA")
    session.query("RESET REPLICA ALL")
    session.query(
        "RESET BINARY LOGS AND GTIDS" if session.understands("RESET BINARY LOGS AND GTIDS") else "RESET MASTER"
    )
    session.query("SET GLOBAL gtid_purged = %s", (str(gtids),))
    session.query(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = %s, SOURCE_PASSWORD = %s, "
        f"SOURCE_AUTO_POSITION = 1{protection}",
        (source.host, source.port, source.user, source.password, *files),
    )
    session.query("START REPLICA")


@dataclass(frozen=True)
class Lag:
    """Shows whether a replica has caught up, and the error that stopped it (empty if there is no error).

    If the replica is retrying to connect, `refused` says why the last attempt failed. It is empty if the replica is
    connected or makes its first attempt. `received` is the position up to which the replica has read the source's
    binlog. `waits_for_source` is True if the replica has applied all transactions up to that position.
    """

    has_caught_up: bool
    error: str
    refused: str = ""
    received: str = field(default="", compare=False)
    waits_for_source: bool = field(default=False, compare=False)


def replica_lag(session: Session, flavour: Flavour) -> Lag:
    """Return the replica's lag, errors and position."""
    (row,) = session.records("SHOW SLAVE STATUS" if flavour is Flavour.MARIADB else "SHOW REPLICA STATUS")

    def first(*names: str) -> str:
        return next((str(row[name]) for name in names if row.get(name) is not None), "")

    receiving, applying = (
        first("Replica_IO_Running", "Slave_IO_Running"),
        first("Replica_SQL_Running", "Slave_SQL_Running"),
    )
    error = first("Last_IO_Error") or first("Last_SQL_Error")
    if "No" in (receiving, applying) and error:
        return Lag(False, error)
    behind = first("Seconds_Behind_Source", "Seconds_Behind_Master")
    has_read_all = "has read all relay log" in first("Replica_SQL_Running_State", "Slave_SQL_Running_State")
    refused = first("Last_IO_Error") if receiving == "Connecting" else ""
    file, offset = first("Source_Log_File", "Master_Log_File"), first("Read_Source_Log_Pos", "Read_Master_Log_Pos")
    return Lag(
        receiving == "Yes" and applying == "Yes" and behind == "0" and has_read_all,
        "",
        refused,
        received=f"{file}:{offset}",
        waits_for_source=has_read_all,
    )


_SCHEMA = "zsnapdb_set_check"


def write_check_row(source: Session, token: str) -> None:
    """Write a row with the token to a new test table on the source."""
    source.query(f"CREATE DATABASE {_SCHEMA}")
    source.query(f"CREATE TABLE {_SCHEMA}.arrival (token CHAR(16) PRIMARY KEY)")
    source.query(f"INSERT INTO {_SCHEMA}.arrival VALUES (%s)", (token,))


def check_rows(replica: Session) -> list[str]:
    """Return the tokens in the test table on the replica."""
    return [str(row[0]) for row in replica.query(f"SELECT token FROM {_SCHEMA}.arrival")]


def remove_check_rows(source: Session) -> None:
    """Remove the test table on the source. Replication removes it on the replicas."""
    source.query(f"DROP DATABASE {_SCHEMA}")


def reached(source: Session) -> str:
    """Return the current GTIDs of the source."""
    flavour, _ = flavour_and_dialect(source)
    return str(source.value(f"SELECT @@GLOBAL.{family(flavour).executed_variable}"))


def has_reached(replica: Session, gtids: str, seconds: float) -> bool:
    """Wait until the replica has applied the GTIDs. Return False if this takes longer than `seconds`."""
    flavour, _ = flavour_and_dialect(replica)
    return replica.query(f"SELECT {family(flavour).wait_function}(%s, %s)", (gtids, seconds)) == [(0,)]


def applier_errors(replica: Session) -> list[str]:
    """Return the replication errors of the replica."""
    _, dialect = flavour_and_dialect(replica)
    return [
        str(row[key])
        for row in replica.records(dialect.channels)
        for key in ("Last_IO_Error", "Last_SQL_Error")
        if row.get(key)
    ]
