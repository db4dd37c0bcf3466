"""Servers with the statements, columns and status variables that zsnapdb uses, according to their manuals."""

from __future__ import annotations

from dataclasses import dataclass

MYSQL, PERCONA, MARIADB = "MySQL", "Percona Server", "MariaDB"


@dataclass(frozen=True)
class KnownCapability:
    """A capability that zsnapdb uses, the servers that have it, and the source of this information.

    `what` is a statement, a column (`information_schema.TABLE.COLUMN`) or a status variable (`status NAME`). `since` is
    inclusive, `until` exclusive (empty: no known bound).
    """

    what: str
    families: tuple[str, ...]
    since: str
    until: str
    source: str


_UPSTREAM = (MYSQL, PERCONA)
_ALL = (MYSQL, PERCONA, MARIADB)

KNOWN = (
    KnownCapability("LOCK INSTANCE FOR BACKUP", _UPSTREAM, "8.0.3", "", "refman 8.0, 'LOCK INSTANCE FOR BACKUP'"),
    KnownCapability("LOCK TABLES FOR BACKUP", (PERCONA,), "5.6.16", "", "Percona Server 8.4 manual, 'Backup locks'"),
    KnownCapability("BACKUP STAGE START", (MARIADB,), "10.4.1", "", "MariaDB manual, 'BACKUP STAGE'; MDEV-5336"),
    KnownCapability("FLUSH TABLES WITH READ LOCK", _ALL, "", "", "refman 5.7 to 9.7, 'FLUSH'; MariaDB manual, 'FLUSH'"),
    KnownCapability(
        "XA RECOVER",
        _ALL,
        "",
        "",
        "refman 5.7 to 9.7, 'XA Transaction SQL Statements'; XA_RECOVER_ADMIN from MySQL 8.0 on (WL#7194)",
    ),
    KnownCapability(
        "SHOW BINARY LOG STATUS", _UPSTREAM, "8.2.0", "", "refman 8.4, 'SHOW BINARY LOG STATUS'; release notes 8.2.0"
    ),
    KnownCapability(
        "SHOW BINARY LOG STATUS", (MARIADB,), "11.8.9", "12.0", "seen in 11.8.9, not in 11.8.6; 12 was not tried"
    ),
    KnownCapability("SHOW BINLOG STATUS", (MARIADB,), "10.5.2", "", "MariaDB manual, 'SHOW MASTER STATUS'"),
    KnownCapability("SHOW MASTER STATUS", _UPSTREAM, "", "8.4.0", "release notes 8.2.0 (deprecated), 8.4.0 (removed)"),
    KnownCapability("SHOW MASTER STATUS", (MARIADB,), "", "", "MariaDB manual, 'SHOW MASTER STATUS'"),
    KnownCapability("SHOW ALL SLAVES STATUS", (MARIADB,), "10.0.1", "", "MariaDB manual, 'SHOW REPLICA STATUS'"),
    KnownCapability(
        "SHOW ALL REPLICAS STATUS", (MARIADB,), "10.5.1", "", "MariaDB manual, 'SHOW REPLICA STATUS'; MDEV-18777"
    ),
    KnownCapability("SHOW REPLICA STATUS", _UPSTREAM, "8.0.22", "", "release notes 8.0.22; WL#14171"),
    KnownCapability(
        "SHOW REPLICA STATUS", (MARIADB,), "10.5.1", "", "MariaDB manual, 'SHOW REPLICA STATUS'; MDEV-18777"
    ),
    KnownCapability("SHOW SLAVE STATUS", _UPSTREAM, "", "8.4.0", "release notes 8.0.22 (deprecated), 8.4.0 (removed)"),
    KnownCapability("SHOW SLAVE STATUS", (MARIADB,), "", "", "MariaDB manual, 'SHOW REPLICA STATUS'"),
    *(
        KnownCapability(f"{verb} {form} SQL_THREAD", families, since, until, source)
        for verb in ("STOP", "START")
        for form, families, since, until, source in (
            ("ALL SLAVES", (MARIADB,), "10.0.1", "", f"MariaDB manual, '{verb} REPLICA'"),
            ("ALL REPLICAS", (MARIADB,), "10.5.1", "", f"MariaDB manual, '{verb} REPLICA'; MDEV-18777"),
            ("REPLICA", _UPSTREAM, "8.0.22", "", "release notes 8.0.22; WL#14171"),
            ("REPLICA", (MARIADB,), "10.5.1", "", f"MariaDB manual, '{verb} REPLICA'; MDEV-18777"),
            ("SLAVE", _UPSTREAM, "", "8.4.0", "release notes 8.0.22 (deprecated), 8.4.0 (removed)"),
            ("SLAVE", (MARIADB,), "", "", f"MariaDB manual, '{verb} REPLICA'"),
        )
    ),
    KnownCapability(
        "information_schema.INNODB_SYS_DATAFILES.PATH",
        _UPSTREAM,
        "",
        "8.0",
        "WL#9535: gone with the data dictionary of 8.0",
    ),
    KnownCapability(
        "information_schema.INNODB_SYS_DATAFILES.PATH",
        (MARIADB,),
        "",
        "10.6.0",
        "MariaDB manual, 'INNODB_SYS_DATAFILES'; MDEV-22343",
    ),
    KnownCapability(
        "information_schema.INNODB_SYS_TABLESPACES.FILENAME",
        (MARIADB,),
        "10.6.0",
        "",
        "MariaDB manual, 'INNODB_SYS_TABLESPACES'; MDEV-22343",
    ),
    KnownCapability(
        "information_schema.FILES.FILE_NAME",
        _ALL,
        "",
        "",
        "refman 5.7 to 9.7, 'The INFORMATION_SCHEMA FILES Table'; no InnoDB rows on MariaDB",
    ),
    KnownCapability(
        "information_schema.INNODB_TABLES.TOTAL_ROW_VERSIONS",
        _UPSTREAM,
        "8.0.29",
        "",
        "release notes 8.0.29; refman 8.0, 'INNODB_TABLES'",
    ),
    KnownCapability(
        "status Innodb_redo_log_enabled", _UPSTREAM, "8.0.21", "", "refman 8.0, 'Disabling Redo Logging'; WL#13795"
    ),
)
"""The capabilities of each server. zsnapdb itself queries the live server."""
