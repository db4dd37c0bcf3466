"""Rules about how the server writes: pages, commits, binlogs, and the rights of the account. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from zsnapdb.base.quantities import format_duration, size
from zsnapdb.planning.advice.facts import AdviceFacts
from zsnapdb.planning.advice.rule import Area, Hit, Rule
from zsnapdb.planning.backup.fitness import Severity, repairs_torn_pages
from zsnapdb.planning.server_copy.encryption import missing_options

_HONOURS_DIRECT = (2, 3)
"""OpenZFS from which O_DIRECT bypasses the ARC. Before, it was accepted and ignored (from 0.8 on)."""
_KNOWS_DIRECT = (0, 8)
_ATOMIC_REWRITE = (2, 2)
_DAY = 86400
_BINLOG_SHARE = 0.25
_MUCH_DATA = 4


def _doublewrite(facts: AdviceFacts) -> Iterator[Hit]:
    if repairs_torn_pages(facts.server):
        return
    page, setting = facts.blocks.page_size, facts.variable("innodb_doublewrite")
    if () < facts.zfs_release < _ATOMIC_REWRITE:
        release = ".".join(map(str, facts.zfs_release))
        yield Hit(f"innodb_doublewrite = {setting}, and OpenZFS {release} splits the write of a page over records")
    smaller = sum(count for block, count in facts.blocks.counts.items() if block < page)
    if smaller:
        yield Hit(f"innodb_doublewrite = {setting}, and {smaller} data file(s) have blocks smaller than a page")


def _uses_direct(facts: AdviceFacts) -> bool:
    return facts.variable_is("innodb_flush_method", "O_DIRECT", "O_DIRECT_NO_FSYNC")


def _bypasses_arc(facts: AdviceFacts) -> bool:
    """Whether the server's reads and writes of data go past the ARC."""
    return (
        facts.zfs_release >= _HONOURS_DIRECT
        and _uses_direct(facts)
        and any(volume.properties.get("direct", "standard") != "disabled" for volume in facts.data_volumes)
    )


def _flush_method(facts: AdviceFacts) -> Iterator[Hit]:
    method = facts.variable("innodb_flush_method")
    release = ".".join(map(str, facts.zfs_release))
    if _uses_direct(facts) and () < facts.zfs_release < _KNOWS_DIRECT:
        yield Hit(f"innodb_flush_method = {method}, and OpenZFS {release} refuses O_DIRECT", "set it to fsync")
    if facts.variable_is("innodb_flush_method", "O_DIRECT_NO_FSYNC"):
        yield Hit(f"innodb_flush_method = {method}: files that grow are not synced", "set it to O_DIRECT or fsync")
    pool, arc, data = facts.variable_number("innodb_buffer_pool_size"), facts.memory.arc_max, facts.data_bytes
    if not _bypasses_arc(facts) or pool is None or arc is None or data is None:
        return
    if arc > pool and data > _MUCH_DATA * pool:
        yield Hit(
            f"innodb_flush_method = {method} goes past the ARC on OpenZFS {release}: the ARC may have {size(arc)} and"
            f" does not cache pages, the buffer pool has {size(pool)}, for {size(data)} of data",
            "give the memory to the buffer pool, or zfs set direct=disabled "
            + " ".join(volume.dataset for volume in facts.data_volumes),
        )


def _native_aio(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.variable_is("innodb_use_native_aio", "ON", "1"):
        yield Hit("innodb_use_native_aio = ON")


def _page_compression(facts: AdviceFacts) -> Iterator[Hit]:
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
    yield Hit(fact + danger)


def _encrypted_tables(facts: AdviceFacts) -> Iterator[Hit]:
    count = facts.tables.encrypted if facts.tables is not None else 0
    if not count and not facts.variable_is("innodb_encrypt_tables", "ON", "FORCE", "1"):
        return
    missing = missing_options(facts.server.variables, facts.copy_options)
    if missing:
        lines = ", ".join(f'"{option.line}"' for option in missing)
        yield Hit(f"{count} table(s) are encrypted, and server.options does not load their keys", f"add {lines} there")


def _sync_binlog(facts: AdviceFacts) -> Iterator[Hit]:
    value = facts.variable("sync_binlog")
    if facts.server.has_binlog and value not in ("", "1"):
        yield Hit(f"sync_binlog = {value}")


def _flush_at_commit(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.variable_is("innodb_flush_log_at_trx_commit", "2") and not facts.server.channels:
        yield Hit("innodb_flush_log_at_trx_commit = 2, and the server is no replica")


def _expiry(facts: AdviceFacts) -> int | None:
    """Return after how many seconds the server removes binlogs, 0 if it never does, None if it does not say."""
    if facts.variable_is("binlog_expire_logs_auto_purge", "OFF", "0"):
        return 0
    seconds, days = facts.variable_number("binlog_expire_logs_seconds"), facts.variable_number("expire_logs_days")
    if seconds is None and days is None:
        return None
    return seconds or (days or 0) * _DAY


def _binlog_expiry(facts: AdviceFacts) -> Iterator[Hit]:
    seconds = _expiry(facts)
    if not facts.server.has_binlog or seconds is None:
        return
    if 0 < seconds < _DAY:
        yield Hit(
            f"the server removes binlogs after {format_duration(seconds)}", "set binlog_expire_logs_seconds = 604800"
        )
    available = [number for volume in facts.volumes if (number := volume.number("available")) is not None]
    if seconds == 0 and facts.binlog_bytes and available and facts.binlog_bytes > min(available) * _BINLOG_SHARE:
        yield Hit(
            f"the server never removes binlogs: they take {size(facts.binlog_bytes)}, and {size(min(available))} are"
            " free",
            "archive them and run `zsnapdb binlog purge`, or set binlog_expire_logs_seconds",
        )


def _gtid_strict(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.variable_is("gtid_strict_mode", "OFF", "0") and facts.server.has_binlog:
        yield Hit("gtid_strict_mode = OFF")
    if facts.variable("gtid_mode") == "ON" and facts.variable_is("enforce_gtid_consistency", "OFF", "WARN"):
        yield Hit(f"enforce_gtid_consistency = {facts.variable('enforce_gtid_consistency')}")


def _checksums(facts: AdviceFacts) -> Iterator[Hit]:
    for name, bad, good in (
        ("innodb_checksum_algorithm", ("NONE", "STRICT_NONE"), "crc32"),
        ("innodb_log_checksums", ("OFF", "0"), "ON"),
        ("binlog_checksum", ("NONE",), "CRC32"),
    ):
        if facts.variable_is(name, *bad):
            yield Hit(f"{name} = {facts.variable(name)}", f"set {name} = {good}")


def _row_metadata(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.server.has_binlog and facts.variable_is("binlog_row_metadata", "MINIMAL", "NO_LOG"):
        yield Hit(f"binlog_row_metadata = {facts.variable('binlog_row_metadata')}")


def _privileges(facts: AdviceFacts) -> Iterator[Hit]:
    needed = facts.lock.privileges
    if facts.privileges is None or not needed or facts.privileges & {*needed, "SUPER"}:
        return
    yield Hit(
        f"the account lacks {' and '.join(needed) if len(needed) == 1 else ' or '.join(needed)}, which the lock"
        f" {facts.lock.name} needs",
        f"GRANT {needed[0]} ON *.* TO the account; `zsnapdb grants` prints all statements",
    )


RULES = (
    Rule(
        "doublewrite",
        Area.SERVER,
        "Without the doublewrite buffer each page is one block, and OpenZFS is 2.2 or newer.",
        "Else a crash between two records leaves a page that is half old and half new, and nothing repairs it. With"
        " blocks of the page size and OpenZFS 2.2 or newer the buffer may be off: a rewrite of a page is one"
        " transaction.",
        "openzfs/zfs commit b0cbc1aa9a (2.2); refman 8.4, innodb_doublewrite; the power cut during a split write of the"
        " intent log is untested",
        "set innodb_doublewrite = ON, or rebuild the files on a dataset with recordsize = innodb_page_size",
        _doublewrite,
    ),
    Rule(
        "flush-method",
        Area.SERVER,
        "What O_DIRECT does on this OpenZFS is what you want.",
        "Up to OpenZFS 2.2 O_DIRECT is accepted and ignored. From 2.3 on it goes past the ARC (direct=standard): a page"
        " that the buffer pool does not hold comes from the disk, and the memory of the ARC serves nobody.",
        "zfsprops(7), direct (2.3); OpenZFS 2.3.0 release notes; refman 8.4, innodb_flush_method",
        "make the buffer pool large and the ARC small, or set direct=disabled on the dataset",
        _flush_method,
    ),
    Rule(
        "native-aio",
        Area.SERVER,
        "InnoDB does not use native asynchronous input and output.",
        "ZFS answers such a request only when it is done, so each one blocks a thread that should not wait.",
        'OpenZFS documentation, "Workload Tuning", "InnoDB"; openzfs/zfs issue 7573; MDEV-26674 (io_uring)',
        "set innodb_use_native_aio = 0",
        _native_aio,
    ),
    Rule(
        "page-compression",
        Area.SERVER,
        "ZFS compresses, not InnoDB.",
        "InnoDB saves space by punching holes, which gains nothing where ZFS compresses. From OpenZFS 2.3 on its short"
        " writes fail under O_DIRECT.",
        "refman 8.4, InnoDB Page Compression; MariaDB manual, InnoDB Page Compression; seen on OpenZFS 2.3 with"
        " MariaDB 11.8: EINVAL for writes of 512 bytes",
        'ALTER TABLE ... COMPRESSION = "none" (MariaDB: PAGE_COMPRESSED = 0), then OPTIMIZE TABLE; or set'
        " direct=disabled on the dataset",
        _page_compression,
    ),
    Rule(
        "encrypted-tables",
        Area.SERVER,
        "A server on a copy can read the keys of encrypted tables.",
        "Restores, clones and drills start a server with server.options. Without its key plugin it does not start.",
        "refman 8.0, Keyring System Variables; MariaDB manual, Encryption Key Management",
        "add the lines to server.options, and give this host the keys",
        _encrypted_tables,
    ),
    Rule(
        "sync-binlog",
        Area.SERVER,
        "The binlog is synced at each commit.",
        "After a power cut the binlog can lack transactions that replicas have, or that the tables have. A MariaDB that"
        " relies on its binlog rolls them back. Backups do not suffer: a snapshot holds what was written.",
        "refman 8.4, sync_binlog; MariaDB manual, sync_binlog (0 is its default)",
        "set sync_binlog = 1; a log device makes it cheap",
        _sync_binlog,
    ),
    Rule(
        "flush-at-commit",
        Area.SERVER,
        "A source syncs the redo log at each commit.",
        "With 2 a power cut takes up to a second of commits that clients were told of. Backups do not suffer.",
        "refman 8.4, innodb_flush_log_at_trx_commit",
        "set innodb_flush_log_at_trx_commit = 1; silence this rule where such a loss does no harm",
        _flush_at_commit,
    ),
    Rule(
        "binlog-expiry",
        Area.SERVER,
        "Binlogs stay until they are archived, and not for ever.",
        "A binlog that goes before it is archived is a gap: points in time after it are lost until the next backup."
        " Binlogs that never go fill the pool, and stop the server.",
        "refman 8.4, binlog_expire_logs_seconds (30 days by default); MariaDB manual, the same (0 by default)",
        "set binlog_expire_logs_seconds to a few days, or let `zsnapdb binlog purge` remove what is archived",
        _binlog_expiry,
    ),
    Rule(
        "gtid-strict",
        Area.SERVER,
        "The server refuses what makes GTIDs ambiguous.",
        "MariaDB without gtid_strict_mode writes a number a second time into its binlog, and two histories then have"
        " the same GTIDs. MySQL without enforce_gtid_consistency accepts statements that have no GTID of their own.",
        "MariaDB manual, gtid_strict_mode; refman 8.4, enforce_gtid_consistency",
        "set gtid_strict_mode = ON (MariaDB), enforce_gtid_consistency = ON (MySQL)",
        _gtid_strict,
    ),
    Rule(
        "binlog-row-metadata",
        Area.SERVER,
        "The binlog has the names of columns.",
        "Without them `zsnapdb undo` refuses a transaction once its table was altered or made anew: which value was in"
        " which column cannot be proved. With them each transaction takes some bytes more.",
        "refman 8.4, binlog_row_metadata (MINIMAL by default); MariaDB manual, the same (NO_LOG by default)",
        "set binlog_row_metadata = FULL",
        _row_metadata,
    ),
    Rule(
        "server-checksums",
        Area.SERVER,
        "Pages, the redo log and binlogs have checksums.",
        "ZFS checks what lies on the disk. The checksums of the server find what went wrong in memory and on the wire,"
        " and drills check pages by them.",
        "refman 8.4, innodb_checksum_algorithm, innodb_log_checksums, binlog_checksum; none was removed from MariaDB"
        " 10.6",
        "set the variable to its default",
        _checksums,
    ),
    Rule(
        "lock-privileges",
        Area.SERVER,
        "The account may take the lock that a backup needs.",
        "Otherwise the server refuses the lock, and every backup fails.",
        'refman 8.4, "LOCK INSTANCE FOR BACKUP", "FLUSH"; MariaDB manual, "BACKUP STAGE"; Percona Server manual,'
        ' "Backup locks"',
        "`zsnapdb grants` prints the statements",
        _privileges,
        Severity.UNFIT,
    ),
)
