"""What must be true of a started clone so that it shares nothing with its source and nothing in it acts by itself.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.model import Flavour
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.planning.server_copy.origin import Origin

ACCOUNT = "zsnapdb_clone"
REPLICA_ACCOUNT = "zsnapdb_replica"
"""What the replicas of a set log in as; made in the set's source after its first start."""
"""The one account of a clone that is not locked."""

_OFF = ("OFF", "0", "DISABLED", "NONE", "")

_MUST_BE_OFF = (
    "event_scheduler",
    "persisted_globals_load",
    "group_replication_start_on_boot",
    "wsrep_on",
    "rpl_semi_sync_source_enabled",
    "rpl_semi_sync_replica_enabled",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_slave_enabled",
    "skip_grant_tables",
    "read_only",
    "super_read_only",
    "extra_port",
    "admin_address",
)
"""Variables that must be off, zero or empty where the server has them."""

_MUST_BE_ON = ("skip_replica_start", "skip_slave_start")

_NEVER_RUNS = ("mysqlx_port",)
"""Variables a server has only while the plugin that opens another port is active."""


READ = (*_MUST_BE_OFF, *_MUST_BE_ON, *_NEVER_RUNS, "port", "bind_address", "socket")
"""Every variable the contract looks at."""


@dataclass(frozen=True)
class Promise:
    """What the clone's server was told to be.

    `follows`: the port of the clone on this host that it replicates from, if it is a set's replica.
    """

    server_id: int
    port: int
    bind_address: str
    socket: str
    follows: int | None = None


def broken(found: ServerFacts, origin: Origin, promise: Promise, awake: tuple[str, ...]) -> tuple[str, ...]:
    """Return every line of the contract the started server breaks (none: it is separate from its source).

    `awake` are accounts other than the clone's own that are not locked.
    """
    values = found.variables
    wrong = []
    if found.server_uuid is not None and found.server_uuid == origin.server_uuid:
        wrong.append(f"server_uuid is the source's, {found.server_uuid}")
    if found.server_id != promise.server_id or found.server_id == origin.server_id:
        wrong.append(f"server_id is {found.server_id}, not {promise.server_id}")
    for name, wanted in (
        ("port", str(promise.port)),
        ("bind_address", promise.bind_address),
        ("socket", promise.socket),
    ):
        if values.get(name) != wanted:
            wrong.append(f"{name} is {values.get(name)}, not {wanted}")
    wrong += [f"{name} is {values[name]}" for name in _MUST_BE_OFF if values.get(name, "").upper() not in _OFF]
    wrong += [f"{name} is {values[name]}" for name in _MUST_BE_ON if values.get(name, "ON").upper() not in ("ON", "1")]
    wrong += [f"{name} is {values[name]}: the plugin runs" for name in _NEVER_RUNS if name in values]
    wrong += _replication(found, promise.follows)
    if awake:
        wrong.append(f"accounts of the source are not locked: {', '.join(awake[:5])}")
    return tuple(wrong)


def _replication(found: ServerFacts, follows: int | None) -> list[str]:
    foreign = [
        channel
        for channel in found.channels
        if follows is None or (channel.host, channel.port) != ("127.0.0.1", follows)
    ]
    return [f"it is configured as a replica of {channel.host}:{channel.port}" for channel in foreign]


def awake_accounts_query(flavour: Flavour) -> str:
    """Return the query for accounts that are neither locked nor the clone's own, as user@host."""
    return _AWAKE[flavour]


def lock_accounts_sql(flavour: Flavour) -> tuple[str, ...]:
    """Return the statements that lock every account but the clone's own.

    A locked account still serves as the definer of views and routines (refman 8.4, "Account Locking").
    """
    return _LOCK[flavour], "FLUSH PRIVILEGES;"


# global_priv is where MariaDB 10.4 and later keep accounts, and roles, which cannot log in (MariaDB KB,
# "mysql.global_priv Table").
_AWAKE = {
    Flavour.MYSQL: (
        "SELECT CONCAT(user, '@', host) FROM mysql.user WHERE user NOT IN ('zsnapdb_clone', 'zsnapdb_replica') AND"
        " account_locked <> 'Y'"
    ),
    Flavour.MARIADB: (
        "SELECT CONCAT(user, '@', host) FROM mysql.global_priv WHERE user NOT IN ('zsnapdb_clone', 'zsnapdb_replica')"
        " AND COALESCE(JSON_VALUE(priv, '$.is_role'), '0') NOT IN ('1', 'true') AND COALESCE(JSON_VALUE(priv,"
        " '$.account_locked'), '0') NOT IN ('1', 'true')"
    ),
}
_LOCK = {
    Flavour.MYSQL: "UPDATE mysql.user SET account_locked = 'Y' WHERE user <> 'zsnapdb_clone';",
    Flavour.MARIADB: (
        "UPDATE mysql.global_priv SET priv = JSON_MERGE_PATCH(priv, '{\"account_locked\": true}') WHERE user <>"
        " 'zsnapdb_clone' AND COALESCE(JSON_VALUE(priv, '$.is_role'), '0') NOT IN ('1', 'true');"
    ),
}
