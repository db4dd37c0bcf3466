"""Checks that a started clone shares nothing with its source and does nothing that no user requested. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.planning.server_facts import ServerFacts
from zsnapdb.planning.server_family import family

ACCOUNT = "zsnapdb_clone"
"""The account of the users of a clone."""
INTERNAL_ACCOUNT = "zsnapdb_internal"
"""The account that zsnapdb itself uses in a clone. The account has every privilege; only root can read its password."""
REPLICA_ACCOUNT = "zsnapdb_replica"
"""The account of the replicas of a set. It is created on the set's source after its first start."""

_OFF = ("OFF", "0", "DISABLED", "NONE", "")

_MUST_BE_OFF = (
    *("event_scheduler", "persisted_globals_load", "group_replication_start_on_boot", "wsrep_on"),
    *("rpl_semi_sync_source_enabled", "rpl_semi_sync_replica_enabled", "rpl_semi_sync_master_enabled"),
    *("rpl_semi_sync_slave_enabled", "skip_grant_tables", "read_only", "super_read_only", "extra_port"),
    "admin_address",
)
"""Variables that must be off, zero or empty if the server has them."""

_MUST_BE_ON = ("skip_replica_start", "skip_slave_start")

_NEVER_RUNS = ("mysqlx_port",)
"""Variables that exist only while a plugin that opens another port is active."""


READ = (*_MUST_BE_OFF, *_MUST_BE_ON, *_NEVER_RUNS, "port", "bind_address", "socket")
"""The variables that the rules check."""


@dataclass(frozen=True)
class CloneIdentity:
    """The identity that the clone's option file gives to the clone's server.

    If the clone is a replica in a set of clones, `follows` is the port of its replication source on this host.
    """

    server_id: int
    port: int
    bind_address: str
    socket: str
    follows: int | None = None


def find_isolation_breaks(
    server: ServerFacts,
    origin: SourceServer,
    promise: CloneIdentity,
    unlocked: tuple[str, ...],
    breaches: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return a text about each rule that the started server breaks; empty if the server is isolated.

    The argument `unlocked` contains the unlocked accounts, except the clone's own accounts. The argument `breaches`
    contains the objects that the server can reach outside its sandbox.
    """
    values = server.variables
    wrong = []
    if server.server_uuid is not None and server.server_uuid == origin.server_uuid:
        wrong.append(f"server_uuid is the source's, {server.server_uuid}")
    if server.server_id != promise.server_id or server.server_id == origin.server_id:
        wrong.append(f"server_id is {server.server_id}, not {promise.server_id}")
    for name, expected in (
        ("port", str(promise.port)),
        ("bind_address", promise.bind_address),
        ("socket", promise.socket),
    ):
        if values.get(name) != expected:
            wrong.append(f"{name} is {values.get(name)}, not {expected}")
    wrong += [f"{name} is {values[name]}" for name in _MUST_BE_OFF if values.get(name, "").upper() not in _OFF]
    wrong += [f"{name} is {values[name]}" for name in _MUST_BE_ON if values.get(name, "ON").upper() not in ("ON", "1")]
    wrong += [f"{name} is {values[name]}: the plugin runs" for name in _NEVER_RUNS if name in values]
    wrong += _replication(server, promise.follows)
    wrong += [f"sandbox: {breach}" for breach in breaches]
    if unlocked:
        wrong.append(f"accounts of the source are not locked: {', '.join(unlocked[:5])}")
    return tuple(wrong)


def _replication(server: ServerFacts, follows: int | None) -> list[str]:
    foreign = [
        channel
        for channel in server.channels
        if follows is None or (channel.host, channel.port) != ("127.0.0.1", follows)
    ]
    return [f"it is configured as a replica of {channel.host}:{channel.port}" for channel in foreign]


def awake_accounts_query(flavour: Flavour) -> str:
    """Return the query for unlocked accounts, as user@host, except the clone's own accounts."""
    return _AWAKE[flavour]


def lock_accounts_sql(flavour: Flavour) -> tuple[str, ...]:
    """Return the statements that lock every account. zsnapdb creates the clone's own accounts afterwards.

    Because of this order, accounts of the source with the same user name as the clone's account are locked too,
    whatever their host part is. A locked account can still be the definer of views and routines (refman 8.4, "Account
    Locking").
    """
    return _LOCK[flavour], "FLUSH PRIVILEGES;"


_OURS = (
    "(user = 'zsnapdb_clone' AND host IN ('localhost', '127.0.0.1', '%')) OR"
    " (user = 'zsnapdb_internal' AND host = 'localhost') OR"
    " (user = 'zsnapdb_replica' AND host IN ('localhost', '127.0.0.1'))"
)
"""The accounts that zsnapdb creates in a clone, but no accounts of the source with these names and another host."""

# MariaDB 10.4 and later keep accounts in global_priv, which also contains roles. Roles cannot log in (MariaDB KB,
# "mysql.global_priv Table").
_AWAKE = {
    Flavour.MYSQL: (
        f"SELECT CONCAT(user, '@', host) FROM mysql.user WHERE NOT ({_OURS})"  # noqa: S608 - of constants
        " AND account_locked <> 'Y'"
    ),
    Flavour.MARIADB: (
        f"SELECT CONCAT(user, '@', host) FROM mysql.global_priv WHERE NOT ({_OURS})"  # noqa: S608 - of constants
        " AND COALESCE(JSON_VALUE(priv, '$.is_role'), '0') NOT IN ('1', 'true') AND COALESCE(JSON_VALUE(priv,"
        " '$.account_locked'), '0') NOT IN ('1', 'true')"
    ),
}
_LOCK = {
    Flavour.MYSQL: "UPDATE mysql.user SET account_locked = 'Y' WHERE account_locked <> 'Y';",
    Flavour.MARIADB: (
        "UPDATE mysql.global_priv SET priv = JSON_MERGE_PATCH(priv, '{\"account_locked\": true}') WHERE"
        " COALESCE(JSON_VALUE(priv, '$.is_role'), '0') NOT IN ('1', 'true');"
    ),
}


class AccountRights(StrEnum):
    """The rights of the users of a clone.

    `schemas` gives all rights in all schemas except the server's own, and the right to create schemas. None of these
    rights allows the user to change the server, its files or its accounts. `all` gives every privilege.
    """

    SCHEMAS = "schemas"
    ALL = "all"


_OF_SCHEMAS = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER, CREATE TEMPORARY TABLES, LOCK TABLES,"
    " EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER"
)


_READS_ROUTINES = "SHOW_ROUTINE"
"""Without this privilege, mysqldump fails if the definer of a routine is another account (refman 8.4, "SHOW CREATE
PROCEDURE"). The privilege exists in MySQL 8.0.20 and later. In MariaDB, the privileges on every schema include SHOW
CREATE ROUTINE.
"""


def grants(
    rights: AccountRights, account: str, flavour: Flavour, known: Collection[str] = (), *, patterns_are_names: bool
) -> tuple[str, ...]:
    """Return the statements that give these rights to a new account. The argument `account` is already quoted.

    A privilege on the pattern `%` applies to every schema, even to schemas that do not exist yet. If several entries
    match a schema, the server uses only the entry with the most specific name (refman 8.4, "Access Control, Stage 2:
    Request Verification"; MariaDB manual, "GRANT"). So the entries for `mysql` and `sys` exclude these schemas. These
    entries are needed: an account that can write the tables of accounts, plugins and functions could give itself all
    rights. Some routines run with the rights of the server's internal accounts. An account that can change such a
    routine could give itself all rights too.

    If `patterns_are_names` is set, the server reads `%` as a name, as MySQL with partial_revokes does. In this case the
    statements grant the rights globally and revoke them for the two schemas. The argument `known` lists the privileges
    that the server supports (SHOW PRIVILEGES).
    """
    if rights is AccountRights.ALL:
        return (f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION",)
    looks = [*family(flavour).privileges_to_look, *(name for name in (_READS_ROUTINES,) if name in known)]
    sees = f"GRANT {', '.join(looks)} ON *.* TO {account}"
    if patterns_are_names:
        fences = tuple(f"REVOKE {_OF_SCHEMAS} ON {schema}.* FROM {account}" for schema in ("mysql", "sys"))
        return sees, f"GRANT {_OF_SCHEMAS} ON *.* TO {account}", *fences, f"GRANT SELECT, EXECUTE ON sys.* TO {account}"
    return (
        sees,
        f"GRANT ALL PRIVILEGES ON `%`.* TO {account}",
        # LOCK TABLES has no effect without SELECT.
        f"GRANT LOCK TABLES ON mysql.* TO {account}",
        f"GRANT SELECT, EXECUTE, SHOW VIEW ON sys.* TO {account}",
    )


class ServerProfile(StrEnum):
    """The size of a clone's server. Many `tiny` servers fit on a host; `normal` means the size in server.options."""

    TINY = "tiny"
    NORMAL = "normal"

    @property
    def options(self) -> tuple[str, ...]:
        """The lines that this profile adds to the option file after the configured lines."""
        return _TINY if self is ServerProfile.TINY else ()


_TINY = (
    *("innodb_buffer_pool_size=32M", "innodb_log_buffer_size=1M", "loose_performance_schema=OFF"),
    *("max_connections=30", "table_open_cache=200", "loose_innodb_buffer_pool_instances=1"),
)
