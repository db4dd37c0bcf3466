"""Conversion of a restored server into a GTID replica of a source, and its lag."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.gtid import Gtids
from zsnapdb.mysql.session import Session
from zsnapdb.mysql.tls import NO_SETTINGS, Tls, TlsMode, is_loopback, own_authorities


@dataclass(frozen=True)
class ReplicationSource:
    """A replication source, the account for the replica, and the TLS settings of the connection."""

    host: str
    port: int
    user: str
    password: str
    tls: Tls = NO_SETTINGS

    def protection(self, flavour: Flavour) -> tuple[str, tuple[object, ...]]:
        """Return the TLS clauses of the statement that names the source, and their parameters.

        A replica cannot merely prefer TLS. It requires TLS, unless TLS is off, or the connection is loopback without a
        CA. Certificates are verified as in the sessions of zsnapdb. MySQL requests a public key only without TLS, and
        only if these sessions may (refman 8.4, "CHANGE REPLICATION SOURCE TO Statement"). MariaDB verifies a
        certificate since 11.4 unless the statement turns that off (MariaDB manual, "CHANGE MASTER TO").
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
        # The switch demands a certificate that names the host. Without it, a CA alone is verified on MySQL.
        checks = verifies and (self.tls.checks_name or flavour is Flavour.MARIADB)
        return f", {word}_SSL = 1{names}, {word}_SSL_VERIFY_SERVER_CERT = {int(checks)}", tuple(given.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the local files that the replica's server reads to connect."""
        return () if self.tls.mode_to(self.host) is TlsMode.OFF else tuple(self._files().values())

    def _files(self) -> dict[str, Path]:
        authorities = (self.tls.ca or own_authorities()) if self.tls.verifies(self.host) else None
        files = {"CA": authorities, "CERT": self.tls.cert, "KEY": self.tls.key}
        return {name: file for name, file in files.items() if file is not None}


def options(flavour: Flavour) -> tuple[str, ...]:
    """Return the option file lines for the first start of a replica; they must follow all other lines."""
    if flavour is Flavour.MARIADB:
        return ("log_slave_updates=ON", "relay_log_recovery=ON")
    return ("relay_log_recovery=ON", "loose_log_replica_updates=ON")


def lasting_options(flavour: Flavour) -> tuple[str, ...]:
    """Return the option file lines for all later starts: the replica takes writes only from its source."""
    if flavour is Flavour.MARIADB:
        return (*options(flavour), "read_only=ON", "skip_slave_start=OFF")
    return (*options(flavour), "super_read_only=ON", "loose_skip_replica_start=OFF")


def refuse_writes(session: Session, flavour: Flavour) -> None:
    """Make the running replica refuse writes except from its source."""
    session.query("SET GLOBAL read_only = ON" if flavour is Flavour.MARIADB else "SET GLOBAL super_read_only = ON")


def follow(session: Session, flavour: Flavour, source: ReplicationSource, gtids: Gtids) -> None:
    """Start to replicate from the source after the transactions `gtids`, which the server has.

    Other sources are removed. On MySQL, the replica's binlogs are reset with gtid_purged = `gtids` (refman 8.4,
    "Setting Up Replication Using GTIDs"). On MariaDB, gtid_slave_pos = `gtids` (MariaDB manual, "Global Transaction
    ID").
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
    """State of a replica: whether it has caught up, and the error that stopped it (empty: none).

    `refused`: why the last connection attempt failed, during retries (empty: connected, or first attempt). `received`
    is the place up to which it has read the source's binlog. `waits_for_source`: it has applied everything up to there.
    """

    has_caught_up: bool
    error: str
    refused: str = ""
    received: str = field(default="", compare=False)
    waits_for_source: bool = field(default=False, compare=False)


def lag(session: Session, flavour: Flavour) -> Lag:
    """Return the lag that the replica reports."""
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
