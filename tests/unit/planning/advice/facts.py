"""Facts about an instance against which no rule says anything, to be changed by tests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from zsnapdb.base.domain_types import Flavour
from zsnapdb.planning.advice.facts import (
    AdviceFacts,
    DeviceFacts,
    MemoryFacts,
    PoolFacts,
    RecoveryFacts,
    TableFacts,
    VolumeFacts,
)
from zsnapdb.planning.backup.fitness import BlockSizes
from zsnapdb.planning.backup.lock_strategy import LockProperties
from zsnapdb.planning.server_facts import Channel, ServerFacts

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
GIB = 1 << 30
GOOD_PROPERTIES = {
    "compression": "lz4",
    "primarycache": "all",
    "logbias": "latency",
    "sync": "standard",
    "atime": "off",
    "relatime": "on",
    "xattr": "sa",
    "acltype": "off",
    "redundant_metadata": "all",
    "checksum": "on",
    "dedup": "off",
    "direct": "standard",
    "available": str(100 * GIB),
}
LOGS = VolumeFacts("tank/mysql", {**GOOD_PROPERTIES, "recordsize": "131072"}, has_logs=True)
DATA = VolumeFacts(
    "tank/mysql/data",
    {**GOOD_PROPERTIES, "recordsize": "16384", "logicalreferenced": str(50 * GIB)},
    has_data=True,
)
GOOD_POOL = PoolFacts(
    "tank",
    "ONLINE",
    created=NOW - timedelta(days=400),
    capacity=40,
    fragmentation=20,
    autotrim=False,
    ashifts={"/dev/sda": 12, "/dev/sdb": 12},
    devices=(
        DeviceFacts("/dev/sda", "data", "mirror-0", "ONLINE"),
        DeviceFacts("/dev/sdb", "data", "mirror-0", "ONLINE"),
        DeviceFacts("/dev/nvme0n1", "log", "mirror-1", "ONLINE"),
        DeviceFacts("/dev/nvme1n1", "log", "mirror-1", "ONLINE"),
    ),
    last_scrub=NOW - timedelta(days=10),
)
VARIABLES = {
    "innodb_buffer_pool_size": str(32 * GIB),
    "innodb_doublewrite": "OFF",
    "innodb_flush_method": "O_DIRECT",
    "innodb_use_native_aio": "OFF",
    "innodb_checksum_algorithm": "crc32",
    "innodb_log_checksums": "ON",
    "binlog_checksum": "CRC32",
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "log_bin": "ON",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    "binlog_expire_logs_seconds": "2592000",
    "binlog_row_metadata": "FULL",
}
LOCK = LockProperties("instance", "", "DDL", privileges=("BACKUP_ADMIN",))
GOOD = AdviceFacts(
    at=NOW,
    zfs_release=(2, 3, 4),
    volumes=(LOGS, DATA),
    pool=GOOD_POOL,
    memory=MemoryFacts(64 * GIB, 16 * GIB, {"zfs_nocacheflush": "0", "zfs_send_corrupt_data": "0"}),
    server=ServerFacts(Flavour.MYSQL, "8.4.6", None, 1, VARIABLES, {"InnoDB": 7}, ()),
    blocks=BlockSizes(16384, {16384: 7}, {16384: "a.ibd"}),
    lock=LOCK,
    privileges=frozenset({"BACKUP_ADMIN", "RELOAD", "PROCESS", "SELECT"}),
    tables=TableFacts(),
    binlog_bytes=GIB,
    recovery=RecoveryFacts("zsnapdb@localhost", lets_root_in=True, has_server_id_file=True),
)


def with_data(**properties: str) -> AdviceFacts:
    """Return the good facts with other properties of the volume with data."""
    return replace(GOOD, volumes=(LOGS, replace(DATA, properties={**DATA.properties, **properties})))


def with_logs(**properties: str) -> AdviceFacts:
    """Return the good facts with other properties of the volume with logs."""
    return replace(GOOD, volumes=(replace(LOGS, properties={**LOGS.properties, **properties}), DATA))


def with_pool(**changes: Any) -> AdviceFacts:
    """Return the good facts with another pool."""
    return replace(GOOD, pool=replace(GOOD_POOL, **changes))


def with_memory(**changes: Any) -> AdviceFacts:
    """Return the good facts with other facts about the memory."""
    return replace(GOOD, memory=replace(GOOD.memory, **changes))


def with_recovery(**changes: Any) -> AdviceFacts:
    """Return the good facts with other facts about recovery."""
    assert GOOD.recovery is not None
    return replace(GOOD, recovery=replace(GOOD.recovery, **changes))


def with_variables(flavour: Flavour = Flavour.MYSQL, **variables: str) -> AdviceFacts:
    """Return the good facts with other variables of the server."""
    return replace(GOOD, server=replace(GOOD.server, flavour=flavour, variables={**VARIABLES, **variables}))


def as_replica(facts: AdviceFacts) -> AdviceFacts:
    """Return the facts of a server that replicates from another."""
    return replace(facts, server=replace(facts.server, channels=(Channel("", "h", 1, True, True, None),)))
