"""Rules about how the server writes pages, commits and binlogs, and about the privileges of the account. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.planning.advice.facts import AdviceFacts, Rule, RuleFinding
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity, ok, repairs_torn_pages, warning
from zsnapdb.planning.server_copy.source_facts import missing_options
from zsnapdb.planning.server_family import family

_HONOURS_DIRECT = (2, 3)
"""The first OpenZFS release in which O_DIRECT bypasses the ARC. Releases since 0.8 accept O_DIRECT but ignore it."""
_KNOWS_DIRECT = (0, 8)
_ATOMIC_REWRITE = (2, 2)
_DAY = 86400
_BINLOG_SHARE = 0.25
_MUCH_DATA = 4


def _doublewrite(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if repairs_torn_pages(facts.server):
        return
    page, setting = facts.blocks.page_size, facts.variable("innodb_doublewrite")
    if () < facts.zfs_release < _ATOMIC_REWRITE:
        release = ".".join(map(str, facts.zfs_release))
        yield RuleFinding(
            f"innodb_doublewrite = {setting}, and OpenZFS {release} splits the write of a page over records"
        )
    smaller = sum(count for block, count in facts.blocks.counts.items() if block < page)
    if smaller:
        yield RuleFinding(f"innodb_doublewrite = {setting}, and {smaller} data file(s) have blocks smaller than a page")


def _uses_direct(facts: AdviceFacts) -> bool:
    return facts.variable_is("innodb_flush_method", "O_DIRECT", "O_DIRECT_NO_FSYNC")


def _bypasses_arc(facts: AdviceFacts) -> bool:
    """Return whether reads and writes of data by the server bypass the ARC."""
    return (
        facts.zfs_release >= _HONOURS_DIRECT
        and _uses_direct(facts)
        and any(volume.properties.get("direct", "standard") != "disabled" for volume in facts.data_volumes)
    )


def _flush_method(facts: AdviceFacts) -> Iterator[RuleFinding]:
    method = facts.variable("innodb_flush_method")
    release = ".".join(map(str, facts.zfs_release))
    if _uses_direct(facts) and () < facts.zfs_release < _KNOWS_DIRECT:
        yield RuleFinding(f"innodb_flush_method = {method}, and OpenZFS {release} refuses O_DIRECT", "set it to fsync")
    if facts.variable_is("innodb_flush_method", "O_DIRECT_NO_FSYNC"):
        yield RuleFinding(
            f"innodb_flush_method = {method}: files that grow are not synced", "set it to O_DIRECT or fsync"
        )
    pool, arc, data = facts.variable_number("innodb_buffer_pool_size"), facts.memory.arc_max, facts.data_bytes
    if not _bypasses_arc(facts) or pool is None or arc is None or data is None:
        return
    if arc > pool and data > _MUCH_DATA * pool:
        yield RuleFinding(
            f"innodb_flush_method = {method} goes past the ARC on OpenZFS {release}: the ARC may have {size(arc)} and"
            f" does not cache pages, the buffer pool has {size(pool)}, for {size(data)} of data",
            "give the memory to the buffer pool, or zfs set direct=disabled "
            + " ".join(volume.dataset for volume in facts.data_volumes),
        )


def _native_aio(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.variable_is("innodb_use_native_aio", "ON", "1"):
        yield RuleFinding("innodb_use_native_aio = ON")


def _page_compression(facts: AdviceFacts) -> Iterator[RuleFinding]:
    count = facts.tables.page_compressed if facts.tables is not None else 0
    by_default = facts.variable_is("innodb_compression_default", "ON", "1")
    if not count and not by_default:
        return
    fact = f"{count} table(s) have compressed pages" if count else "innodb_compression_default = ON"
    danger = (
        "; with O_DIRECT this OpenZFS refuses writes that are not of whole memory pages (EINVAL), and the server may"
        " loop on input and output errors, on copies too"
        if _bypasses_arc(facts)
        else ""
    )
    yield RuleFinding(fact + danger)


def _encrypted_tables(facts: AdviceFacts) -> Iterator[RuleFinding]:
    count = facts.tables.encrypted if facts.tables is not None else 0
    if not count and not facts.variable_is("innodb_encrypt_tables", "ON", "FORCE", "1"):
        return
    missing = missing_options(facts.server.variables, facts.copy_options)
    if missing:
        lines = ", ".join(f'"{option.line}"' for option in missing)
        yield RuleFinding(
            f"{count} table(s) are encrypted, and server.options does not load their keys", f"add {lines} there"
        )


def _sync_binlog(facts: AdviceFacts) -> Iterator[RuleFinding]:
    value = facts.variable("sync_binlog")
    if facts.server.has_binlog and value not in (None, "1"):
        yield RuleFinding(f"sync_binlog = {value}")


def _flush_at_commit(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.variable_is("innodb_flush_log_at_trx_commit", "2") and not facts.server.channels:
        yield RuleFinding("innodb_flush_log_at_trx_commit = 2, and the server is no replica")


def _expiry(facts: AdviceFacts) -> int | None:
    """Return the age in seconds at which the server removes binlogs; 0 if it never does, None if it reports no age."""
    if facts.variable_is("binlog_expire_logs_auto_purge", "OFF", "0"):
        return 0
    seconds, days = facts.variable_number("binlog_expire_logs_seconds"), facts.variable_number("expire_logs_days")
    if seconds is None and days is None:
        return None
    return seconds or (days or 0) * _DAY


def _binlog_expiry(facts: AdviceFacts) -> Iterator[RuleFinding]:
    seconds = _expiry(facts)
    if not facts.server.has_binlog or seconds is None:
        return
    if 0 < seconds < _DAY:
        yield RuleFinding(
            f"the server removes binlogs after {format_duration(seconds)}", "set binlog_expire_logs_seconds = 604800"
        )
    available = [number for volume in facts.volumes if (number := volume.number("available")) is not None]
    if seconds == 0 and facts.binlog_bytes and available and facts.binlog_bytes > min(available) * _BINLOG_SHARE:
        yield RuleFinding(
            f"the server never removes binlogs: they take {size(facts.binlog_bytes)}, and {size(min(available))} are"
            " free",
            "archive them and run `zsnapdb binlog purge`, or set binlog_expire_logs_seconds",
        )


def _gtid_strict(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.variable_is("gtid_strict_mode", "OFF", "0") and facts.server.has_binlog:
        yield RuleFinding("gtid_strict_mode = OFF")
    if facts.variable("gtid_mode") == "ON" and facts.variable_is("enforce_gtid_consistency", "OFF", "WARN"):
        yield RuleFinding(f"enforce_gtid_consistency = {facts.variable('enforce_gtid_consistency')}")


def _checksums(facts: AdviceFacts) -> Iterator[RuleFinding]:
    for name, bad, good in (
        ("innodb_checksum_algorithm", ("NONE", "STRICT_NONE"), "crc32"),
        ("innodb_log_checksums", ("OFF", "0"), "ON"),
        ("binlog_checksum", ("NONE",), "CRC32"),
    ):
        if facts.variable_is(name, *bad):
            yield RuleFinding(f"{name} = {facts.variable(name)}", f"set {name} = {good}")


def _row_metadata(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.server.has_binlog and facts.variable_is("binlog_row_metadata", "MINIMAL", "NO_LOG"):
        yield RuleFinding(f"binlog_row_metadata = {facts.variable('binlog_row_metadata')}")


def _privileges(facts: AdviceFacts) -> Iterator[RuleFinding]:
    needed = facts.lock.privileges
    if facts.privileges is None or not needed or facts.privileges & {*needed, "SUPER"}:
        return
    yield RuleFinding(
        f"the account lacks {' and '.join(needed) if len(needed) == 1 else ' or '.join(needed)}, which the lock"
        f" {facts.lock.name} needs",
        f"GRANT {needed[0]} ON *.* TO the account; `zsnapdb grants` prints all statements",
    )


RULES = (
    Rule(
        "doublewrite",
        "If the doublewrite buffer is off, no block is smaller than a page, and OpenZFS is 2.2 or newer.",
        "If a page spans two records, a crash between the two writes leaves a page that is half old and half new."
        " Only the doublewrite buffer can repair this page. The buffer may be off if blocks have the page size and"
        " OpenZFS is 2.2 or newer, because ZFS then rewrites a page in one transaction.",
        "openzfs/zfs commit b0cbc1aa9a (2.2); refman 8.4, innodb_doublewrite; a power cut during a split write of the"
        " intent log was not tested",
        "set innodb_doublewrite = ON, or rebuild the files on a dataset with recordsize = innodb_page_size",
        _doublewrite,
    ),
    Rule(
        "flush-method",
        "innodb_flush_method suits the OpenZFS release and the size of the ARC.",
        "OpenZFS 0.8 to 2.2 accepts O_DIRECT and ignores it. From 2.3 on, O_DIRECT bypasses the ARC (direct=standard)."
        " With O_DIRECT, each page that is not in the buffer pool comes from disk, and the ARC uses memory without"
        " caching any page.",
        "zfsprops(7), direct (2.3); OpenZFS 2.3.0 release notes; refman 8.4, innodb_flush_method",
        "make the buffer pool large and the ARC small, or set direct=disabled on the dataset",
        _flush_method,
    ),
    Rule(
        "native-aio",
        "InnoDB does not use native asynchronous input and output.",
        "ZFS answers an asynchronous request only when the request is complete. So each request blocks a thread that"
        " should not wait.",
        'OpenZFS documentation, "Workload Tuning", "InnoDB"; openzfs/zfs issue 7573; MDEV-26674 (io_uring)',
        "set innodb_use_native_aio = 0",
        _native_aio,
    ),
    Rule(
        "page-compression",
        "ZFS compresses the data, and InnoDB does not.",
        "InnoDB page compression saves space by punching holes into files. This saves nothing on a dataset that ZFS"
        " compresses. From OpenZFS 2.3 on, the short writes of InnoDB page compression fail with O_DIRECT.",
        "refman 8.4, InnoDB Page Compression; MariaDB manual, InnoDB Page Compression; seen on OpenZFS 2.3 with"
        " MariaDB 11.8: EINVAL for writes of 512 bytes",
        'ALTER TABLE ... COMPRESSION = "none" (MariaDB: PAGE_COMPRESSED = 0), then OPTIMIZE TABLE; or set'
        " direct=disabled on the dataset",
        _page_compression,
    ),
    Rule(
        "encrypted-tables",
        "A server on a copy can read the keys of encrypted tables.",
        "Restores, clones and drills start a server with the options in server.options. Without its key plugin, this"
        " server does not start.",
        "refman 8.0, Keyring System Variables; MariaDB manual, Encryption Key Management",
        "add the options of the key plugin to server.options, and copy the keys to this host",
        _encrypted_tables,
    ),
    Rule(
        "sync-binlog",
        "The server syncs the binlog at each commit.",
        "After a power cut, transactions that the replicas or the tables contain can be missing from the binlog. A"
        " MariaDB server that relies on its binlog rolls these transactions back. Backups are not affected, because a"
        " snapshot contains every write.",
        "refman 8.4, sync_binlog; MariaDB manual, sync_binlog (0 is its default)",
        "set sync_binlog = 1; with a log device this costs little",
        _sync_binlog,
    ),
    Rule(
        "flush-at-commit",
        "A server that is not a replica syncs the redo log at each commit.",
        "With innodb_flush_log_at_trx_commit = 2, a power cut loses up to one second of commits that the server"
        " acknowledged to clients. Backups are not affected.",
        "refman 8.4, innodb_flush_log_at_trx_commit",
        "set innodb_flush_log_at_trx_commit = 1; silence this rule if you accept such a loss",
        _flush_at_commit,
    ),
    Rule(
        "binlog-expiry",
        "The server keeps binlogs until they are archived, but not forever.",
        "If the server removes a binlog before it is archived, the archive has a gap. Points in time between the"
        " gap and the next backup then cannot be restored. If the server never removes binlogs, they fill the pool and"
        " stop the server.",
        "refman 8.4, binlog_expire_logs_seconds (30 days by default); MariaDB manual, the same (0 by default)",
        "set binlog_expire_logs_seconds to a few days, or let `zsnapdb binlog purge` remove archived binlogs",
        _binlog_expiry,
    ),
    Rule(
        "gtid-strict",
        "The server refuses operations that make GTIDs ambiguous.",
        "Without gtid_strict_mode, a MariaDB server can write a GTID to its binlog twice, and two histories then have"
        " the same GTIDs. Without enforce_gtid_consistency, a MySQL server accepts statements that cannot have a GTID"
        " of their own.",
        "MariaDB manual, gtid_strict_mode; refman 8.4, enforce_gtid_consistency",
        "set gtid_strict_mode = ON (MariaDB), enforce_gtid_consistency = ON (MySQL)",
        _gtid_strict,
    ),
    Rule(
        "binlog-row-metadata",
        "The binlog contains the column names.",
        "Without column names, `zsnapdb undo` refuses a transaction if its table was altered or recreated later,"
        " because zsnapdb cannot prove which value belongs to which column. With column names, each transaction is a"
        " few bytes longer.",
        "refman 8.4, binlog_row_metadata (MINIMAL by default); MariaDB manual, the same (NO_LOG by default)",
        "set binlog_row_metadata = FULL",
        _row_metadata,
    ),
    Rule(
        "server-checksums",
        "Pages, the redo log and the binlogs have checksums.",
        "ZFS checks only the data on disk. The checksums of the server detect errors in memory and on the network, and"
        " drills use them to check pages.",
        "refman 8.4, innodb_checksum_algorithm, innodb_log_checksums, binlog_checksum; MariaDB 10.6 removed the"
        " value none",
        "set the variable to its default",
        _checksums,
    ),
    Rule(
        "lock-privileges",
        "The account of zsnapdb may take the lock that a backup needs.",
        "Without the privilege for this lock, the server refuses it, and every backup fails.",
        'refman 8.4, "LOCK INSTANCE FOR BACKUP", "FLUSH"; MariaDB manual, "BACKUP STAGE"; Percona Server manual,'
        ' "Backup locks"',
        "run the statements that `zsnapdb grants` prints",
        _privileges,
        Severity.UNFIT,
    ),
)


_MEMORY_SHARE = 0.9
"""The share of the memory for the buffer pool and the ARC together; the rest is for connections and the system."""
_ARC_FLOOR = 0.005
"""The smallest recommended ARC on a host without L2ARC, as a fraction of the data."""


def _memory(facts: AdviceFacts) -> Iterator[RuleFinding]:
    total, arc, pool = facts.memory.total, facts.memory.arc_max, facts.variable_number("innodb_buffer_pool_size")
    if total is None or arc is None or pool is None or arc + pool <= total * _MEMORY_SHARE:
        return
    limit = max(int(total * _MEMORY_SHARE) - pool, total // 20)
    yield RuleFinding(
        f"the ARC may grow to {size(arc)} and the buffer pool has {size(pool)}, of {size(total)} of memory",
        f"options zfs zfs_arc_max={limit} in /etc/modprobe.d/zfs.conf; at once:"
        f" echo {limit} > /sys/module/zfs/parameters/zfs_arc_max",
    )


def _arc_floor(facts: AdviceFacts) -> Iterator[RuleFinding]:
    arc, data = facts.memory.arc_max, facts.data_bytes
    if arc is None or data is None or (facts.pool is not None and facts.pool.devices_of("cache")):
        return
    if arc < data * _ARC_FLOOR:
        yield RuleFinding(
            f"the ARC may grow to {size(arc)}, for {size(data)} of data",
            f"options zfs zfs_arc_max={int(data * _ARC_FLOOR)} in /etc/modprobe.d/zfs.conf, or a cache device",
        )


def _cache_flushes(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.memory.parameters.get("zfs_nocacheflush", "0") == "1":
        yield RuleFinding("zfs_nocacheflush is 1")


def _corrupt_data(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.memory.parameters.get("zfs_send_corrupt_data", "0") == "1":
        yield RuleFinding("zfs_send_corrupt_data is 1")


MEMORY_RULES = (
    Rule(
        "memory",
        "The ARC and the buffer pool together fit into memory.",
        "The ARC releases memory slowly. Until it does, the kernel swaps, or kills the largest process, which is the"
        " server.",
        "zfs(4), zfs_arc_max: the default is half of the memory up to OpenZFS 2.2; from 2.3 on it is five eighths of"
        " the memory, or all memory except 1 GiB, if that is larger",
        "limit the ARC with zfs_arc_max",
        _memory,
    ),
    Rule(
        "arc-floor",
        "Without a cache device, the ARC is allowed to grow to at least 0.5 % of the size of the data.",
        "The metadata takes about 0.5 % of the size of the data. If the metadata does not fit into the ARC, each read"
        " must first read metadata from disk.",
        'Percona, "MySQL and ZFS" (2019): about 5 GB for 1 TB, "not a hard rule"',
        "let the ARC grow (zfs_arc_max), or add a cache device",
        _arc_floor,
    ),
    Rule(
        "zfs-nocacheflush",
        "ZFS flushes the write caches of disks (zfs_nocacheflush = 0).",
        "With the value 1, a power cut can lose data that ZFS believes to be on disk, and can damage the pool. The"
        " advice to set 1 was meant for disk arrays with a battery. On FreeBSD the parameter is vfs.zfs.nocacheflush"
        " (not tested with zsnapdb).",
        "zfs(4), zfs_nocacheflush",
        "set zfs_nocacheflush = 0; a log device with power-loss protection makes synchronous writes fast",
        _cache_flushes,
    ),
    Rule(
        "zfs-send-corrupt-data",
        "`zfs send` fails at a damaged block (zfs_send_corrupt_data = 0).",
        "With the value 1, `zfs send` writes a pattern in place of the damaged block, and the backup looks undamaged.",
        "zfs(4), zfs_send_corrupt_data",
        "set zfs_send_corrupt_data = 0",
        _corrupt_data,
    ),
)


_ALL_NEED = ("server program", "plugins")
_NEEDS = {
    "undo": ("recovery-account",),
    "rescue into the server": ("recovery-account",),
    "rewind": ("rewind-control",),
    "drill": ("drill",),
    "clone": (),
}
"""For each emergency command, the findings that show why zsnapdb would refuse it, or why it needs more arguments.

Each command also needs `_ALL_NEED`, because it starts a server on restored or cloned data. `undo --apply` does so to
test the undo.
"""


def possible(findings: Iterable[FitnessFinding]) -> FitnessFinding:
    """Return a finding that lists the usable emergency commands, and the reasons against the unusable ones.

    The finding is a warning if no command is usable.
    """
    against: dict[str, FitnessFinding] = {}
    for finding in findings:
        if finding.severity is not Severity.OK:
            against.setdefault(finding.what, finding)
    usable, blocked = list[str](), dict[str, list[str]]()
    for name, needs in _NEEDS.items():
        obstacle = next((what for what in (*needs, *_ALL_NEED) if what in against), None)
        (usable if obstacle is None else blocked.setdefault(obstacle, [])).append(name)
    reasons = "; ".join(f"{', '.join(names)} ({what}: {against[what].detail})" for what, names in blocked.items())
    text = f"possible now: {', '.join(usable) or 'nothing'}{f'; not possible now: {reasons}' if reasons else ''}"
    return ok("recovery", text) if usable else warning("recovery", text, against[next(iter(blocked))].hint)


def _account(facts: AdviceFacts) -> Iterable[RuleFinding]:
    ways = facts.recovery
    if ways is None or ways.lets_root_in:
        return
    yield RuleFinding("root is not let in by the socket: `rescue --into-instance` and `undo --apply` need --user")
    if facts.privileges is not None and "TRIGGER" not in facts.privileges:
        user, _, host = ways.account.rpartition("@")
        yield RuleFinding(
            f"`undo` needs --user too: {ways.account} does not see triggers",
            f"GRANT TRIGGER ON *.* TO `{user}`@`{host}`",
        )


def _rewind(facts: AdviceFacts) -> Iterable[RuleFinding]:
    ways = facts.recovery
    if ways is None:
        return
    if ways.no_control:
        yield RuleFinding(ways.no_control, "set control.unit of the instance, or control.stop and control.start")
    kind = family(facts.server.flavour)
    if not kind.has_uuid and not ways.has_server_id_file:
        file = f"{kind.option_folder}/zz-zsnapdb.cnf"
        yield RuleFinding(
            f"a rewound {kind.title} needs a new server_id, and no file for it is configured",
            f'set control.server_id_file = "{file}", a new file in a folder that its option files include',
        )


def _repository_place(facts: AdviceFacts) -> Iterator[RuleFinding]:
    local = facts.local_repository
    if local is None:
        return
    is_same = facts.pool is not None and local.pool == facts.pool.name
    place = f"in {local.pool}, the pool of the server" if is_same else "on a disk of this host"
    yield RuleFinding(f"the only backups are in {local.folder}, {place}")


RECOVERY_RULES = (
    Rule(
        "recovery-account",
        "`rescue --into-instance` and `undo` can log in with an account that may change rows.",
        "The account that `zsnapdb grants` creates cannot change rows, on purpose. So `rescue --into-instance` and"
        " `undo --apply` log in as root through the socket. In an emergency, you then need no password. On MariaDB,"
        " setup lets zsnapdb always log in as root. If `undo` cannot see the triggers, it undoes no transaction.",
        'refman 8.4, "Socket Peer-Credential Pluggable Authentication", "The INFORMATION_SCHEMA TRIGGERS Table";'
        ' MariaDB manual, "Authentication Plugin - Unix Socket"',
        "allow root to log in through the socket, or create a file that contains the password of another account; a"
        " rescue into a file needs neither",
        _account,
    ),
    Rule(
        "rewind-control",
        "`zsnapdb rewind` can stop and start the server, and set a new server_id (MariaDB).",
        "A rewind stops the server, exchanges its datasets, and starts the server again. With its old server_id, a"
        " MariaDB server would assign the same GTIDs again.",
        'MariaDB manual, "Global Transaction ID"; systemctl(1)',
        "set control.unit, or control.stop and control.start; for MariaDB also set control.server_id_file",
        _rewind,
    ),
    Rule(
        "repository-place",
        "The backups, or a copy of them, are not on a disk of this host.",
        "If this host or its disks are lost, the backups on them are lost too. Backups in the pool of the"
        " server also use space that the server needs, and damage to this pool can destroy both server and backups.",
        "zsnapdb decides by the file system of the folder; network file systems count as another host",
        "copy the backups to another host: set a second repository in objectives.copies, and run `zsnapdb copy`;"
        " silence this rule if the disk can be attached to another host",
        _repository_place,
    ),
)
