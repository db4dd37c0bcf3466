"""Rules about the properties of an instance's datasets. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

from zsnapdb.planning.advice.facts import AdviceFacts, Rule, RuleFinding, VolumeFacts, repairable_finding
from zsnapdb.planning.backup.fitness import PropertyChange

_TUNING = 'OpenZFS documentation, "Workload Tuning", '
_LOG_RECORD = 128 << 10
_DIR_XATTRS_UNTIL = (2, 2)
"""The first OpenZFS release in which xattr=on means xattr=sa, not xattr=dir (zfsprops(7) of 2.1 and 2.2)."""


def _kib(size: int) -> str:
    return f"{size >> 10}K"


def _recordsize_of_data(facts: AdviceFacts) -> Iterator[RuleFinding]:
    page = facts.blocks.page_size
    for volume in facts.data_volumes:
        record = volume.number("recordsize")
        if record is not None and record != page:
            yield repairable_finding(
                f"{volume.dataset} has recordsize={_kib(record)}, and pages have {_kib(page)}",
                PropertyChange(volume.dataset, "recordsize", _kib(page)),
                "; files that exist keep their records until their tables are rebuilt",
            )


def _recordsize_of_logs(facts: AdviceFacts) -> Iterator[RuleFinding]:
    for volume in facts.volumes:
        record = volume.number("recordsize")
        if volume.has_logs and not volume.has_data and record is not None and record < _LOG_RECORD:
            yield repairable_finding(
                f"{volume.dataset} holds logs alone and has recordsize={_kib(record)}",
                PropertyChange(volume.dataset, "recordsize", _kib(_LOG_RECORD)),
                "; new files get it",
            )


def _each(
    name: str, bad: Callable[[str], bool], value: str, of_data: bool = False, is_safe: bool = False
) -> Callable[[AdviceFacts], Iterator[RuleFinding]]:
    """Return a check for a bad value of a property. If `is_safe` is set, `doctor --fix` may set it to `value`."""

    def check(facts: AdviceFacts) -> Iterator[RuleFinding]:
        for volume in facts.data_volumes if of_data else facts.volumes:
            current = volume.properties.get(name)
            if current is not None and bad(current):
                change = PropertyChange(volume.dataset, name, value)
                hit = repairable_finding(f"{volume.dataset} has {name}={current}", change)
                yield hit if is_safe else replace(hit, change=None)

    return check


def _atime(facts: AdviceFacts) -> Iterator[RuleFinding]:
    for volume in facts.volumes:
        if volume.properties.get("atime") == "on" and volume.properties.get("relatime") == "off":
            change = PropertyChange(volume.dataset, "atime", "off")
            yield repairable_finding(f"{volume.dataset} has atime=on and relatime=off", change)


def _has_directories(facts: AdviceFacts, volume: VolumeFacts) -> bool:
    value = volume.properties.get("xattr")
    return value == "dir" or (value == "on" and () < facts.zfs_release < _DIR_XATTRS_UNTIL)


def _xattr(facts: AdviceFacts) -> Iterator[RuleFinding]:
    for volume in facts.volumes:
        in_use = facts.uses_selinux or volume.properties.get("acltype") in ("posix", "posixacl")
        if in_use and _has_directories(facts, volume):
            yield repairable_finding(
                f"{volume.dataset} has xattr={volume.properties['xattr']}, and this host uses extended attributes",
                PropertyChange(volume.dataset, "xattr", "sa"),
                "; files that exist keep theirs",
            )


def _redundant_metadata(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.pool is None or not facts.pool.has_single_disks:
        return
    for volume in facts.volumes:
        value = volume.properties.get("redundant_metadata", "all")
        if value != "all":
            yield repairable_finding(
                f"{volume.dataset} has redundant_metadata={value}, and the pool {facts.pool.name} has a disk without a"
                " mirror",
                PropertyChange(volume.dataset, "redundant_metadata", "all"),
            )


RULES = (
    Rule(
        "recordsize-data",
        "The record size of data equals the page size of InnoDB.",
        "With larger records, ZFS reads and writes a whole record for each page that the server writes. With smaller"
        " records, ZFS does not write a page as one block, but as several blocks, which need more metadata and"
        " compress less. A file keeps the record size with which it was created, so the check `blocks`"
        " looks at the files themselves.",
        f'{_TUNING}"InnoDB"; zfsprops(7), recordsize',
        "set recordsize to innodb_page_size before the files are created; otherwise rebuild the tables afterwards",
        _recordsize_of_data,
    ),
    Rule(
        "recordsize-logs",
        "A dataset that contains only logs has a record size of 128K or more.",
        "The server writes and reads logs sequentially. Small records need more metadata, compress less, and have no"
        " advantage.",
        f'{_TUNING}"InnoDB"; zfsprops(7), recordsize',
        "set recordsize=128K",
        _recordsize_of_logs,
    ),
    Rule(
        "compression",
        "Compression is on.",
        "lz4 costs less time than the input and output that it saves, and it quickly gives up on data that does not"
        " compress.",
        f'{_TUNING}"Compression"; zfsprops(7), compression',
        "set compression=lz4; ZFS compresses existing data only when it is written again",
        _each("compression", lambda value: value == "off", "lz4", is_safe=True),
    ),
    Rule(
        "primarycache",
        "The ARC caches data, not only metadata.",
        "If the ARC does not cache data, each read that misses the buffer pool reads a whole record from disk, even if"
        " another part of the record was just read. `zfs send`, clones and crash recovery read everything from disk.",
        "openzfs/zfs issue 16993 (162 s against 10 s for one query), issues 6518, 4812 and 11810; zfsprops(7)",
        "set primarycache=all and limit the ARC with zfs_arc_max; keep another value only if you measured it with your"
        " load",
        _each("primarycache", lambda value: value != "all", "all", of_data=True),
    ),
    Rule(
        "logbias",
        "Synchronous writes are optimized for latency.",
        "With logbias=throughput, ZFS writes all synchronous writes directly to their final location in the pool."
        " Such writes bypass the log device and fragment the data.",
        f'zfsprops(7), logbias; {_TUNING}"InnoDB" recommends throughput, but later measurements contradict it',
        "set logbias=latency; keep throughput only if you measured it with your load",
        _each("logbias", lambda value: value == "throughput", "latency", is_safe=True),
    ),
    Rule(
        "sync-disabled",
        "ZFS acknowledges synchronous writes only when they are on disk.",
        "With sync=disabled, a power cut loses the commits of the last seconds, although the server acknowledged them"
        " to clients. After such a loss, a replica may be ahead of its source.",
        "zfsprops(7), sync",
        "set sync=standard; if you accept such a loss, set innodb_flush_log_at_trx_commit = 2 on the server instead",
        _each("sync", lambda value: value == "disabled", "standard"),
    ),
    Rule(
        "atime",
        "Reading a file writes nothing to disk.",
        "With atime=on and relatime=off, ZFS writes metadata after each read of a file, and increments become larger.",
        "zfsprops(7), atime and relatime",
        "set atime=off",
        _atime,
    ),
    Rule(
        "xattr",
        "Extended attributes are stored in the inodes.",
        "Access control lists and SELinux use extended attributes. If these are not in the inodes, each access to a"
        " file also reads a hidden directory and a file in this directory.",
        "zfsprops(7), xattr, of OpenZFS 2.1 (where on means dir) and 2.2 (where on means sa)",
        "set xattr=sa",
        _xattr,
    ),
    Rule(
        "redundant-metadata",
        "On disks without a mirror, all metadata has a second copy.",
        'The values "most" and "less" save a few percent of the writes. But with these values, one bad sector can'
        " destroy a whole section of a file.",
        f'zfsprops(7), redundant_metadata; {_TUNING}"InnoDB"',
        "set redundant_metadata=all",
        _redundant_metadata,
    ),
    Rule(
        "checksum",
        "ZFS checks the data that it reads.",
        "With checksum=off, no read, scrub or backup detects damage on the disk.",
        "zfsprops(7), checksum",
        "set checksum=on",
        _each("checksum", lambda value: value == "off", "on", is_safe=True),
    ),
    Rule(
        "dedup",
        "Deduplication is off.",
        "Database pages are almost never identical. With deduplication, every write searches a table that soon"
        " outgrows the memory.",
        f'{_TUNING}"Deduplication"; zfsprops(7), dedup',
        "set dedup=off; existing data stays deduplicated until it is written again",
        _each("dedup", lambda value: value != "off", "off", is_safe=True),
    ),
)


SCRUB_LIMIT = timedelta(days=35)
"""The maximum age of a pool's last scrub: a month plus some days.

Debian and Ubuntu scrub pools once a month (/etc/cron.d/zfsutils-linux).
"""
FULL_PERCENT = 80
FRAGMENTED_PERCENT = 70
_SECTOR_4K = 12
_REMOVABLE = ("log", "cache")
"""The roles of devices that can be removed from a pool at any time (zpool-remove(8))."""
_MEMORY_DEVICE = re.compile(r"/dev/z?ram[0-9]*")


def _health(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    if pool is not None and pool.health != "ONLINE":
        bad = ", ".join(f"{device.path} {device.health}" for device in pool.devices if device.health != "ONLINE")
        yield RuleFinding(
            f"the pool {pool.name} is {pool.health}" + (f": {bad}" if bad else ""), f"zpool status -v {pool.name}"
        )


def _errors(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.pool is not None and facts.pool.errors:
        yield RuleFinding(f"the pool {facts.pool.name} has errors: {facts.pool.errors}", "")


def _space(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    if pool is not None and pool.capacity is not None and pool.capacity >= FULL_PERCENT:
        yield RuleFinding(f"the pool {pool.name} is {pool.capacity} % full")


def _fragmentation(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    if pool is not None and pool.fragmentation is not None and pool.fragmentation >= FRAGMENTED_PERCENT:
        yield RuleFinding(f"the free space of the pool {pool.name} is fragmented to {pool.fragmentation} %")


def _scrub(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    if pool is None or not pool.is_scrub_known:
        return
    since = pool.last_scrub or pool.created
    if since is None or facts.at - since <= SCRUB_LIMIT:
        return
    what = f"since {pool.last_scrub:%Y-%m-%d}" if pool.last_scrub else f"since it was made on {since:%Y-%m-%d}"
    yield RuleFinding(
        f"the pool {pool.name} was not scrubbed {what}", f"zpool scrub {pool.name}, and a timer that repeats it"
    )


def _trim(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    if pool is None or pool.autotrim is not False or not pool.untrimmed or pool.created is None:
        return
    if facts.at - pool.created > SCRUB_LIMIT:
        devices = ", ".join(pool.untrimmed)
        yield RuleFinding(
            f"the pool {pool.name} has autotrim=off, and was never trimmed: {devices}",
            f"zpool trim {pool.name}, and a timer that repeats it; or zpool set autotrim=on {pool.name}",
        )


def _ashift(facts: AdviceFacts) -> Iterator[RuleFinding]:
    if facts.pool is None:
        return
    pool, lasting = facts.pool, []
    for device, ashift in sorted(facts.pool.ashifts.items()):
        role = pool.role_of(device)
        if 0 < ashift < _SECTOR_4K and role in _REMOVABLE:
            yield RuleFinding(
                f"the {role} device {device} of the pool {pool.name} has ashift {ashift}",
                f"zpool remove {pool.name} {device}, then add it again: zpool add -o ashift=12 {pool.name} {role} ...",
            )
        elif 0 < ashift < _SECTOR_4K:
            lasting.append(f"{device} {ashift}")
    if lasting:
        yield RuleFinding(f"devices of the pool {pool.name} have an ashift below {_SECTOR_4K}: {', '.join(lasting)}")


def _log_mirror(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    for device in pool.devices_of("log") if pool is not None else ():
        if pool is not None and not device.group and not _MEMORY_DEVICE.match(device.path):
            yield RuleFinding(
                f"the log device {device.path} of the pool {pool.name} has no mirror",
                f"zpool attach {pool.name} {device.path} SECOND_DEVICE",
            )


def _log_in_memory(facts: AdviceFacts) -> Iterator[RuleFinding]:
    pool = facts.pool
    for device in pool.devices_of("log") if pool is not None else ():
        if pool is not None and _MEMORY_DEVICE.match(device.path):
            yield RuleFinding(f"the log device {device.path} is memory", f"zpool remove {pool.name} {device.path}")


POOL_RULES = (
    Rule(
        "pool-health",
        "The pool is ONLINE.",
        "A pool that has lost a device has less redundancy or none. The next failure can destroy the data.",
        "zpoolconcepts(7), Device Failure and Recovery; zpool-status(8)",
        "run `zpool status -v` to find the device, and replace it with `zpool replace`",
        _health,
    ),
    Rule(
        "pool-errors",
        "The pool has no known damaged files.",
        "`zpool status` lists data that ZFS could not repair from any copy. A backup that reads such data fails.",
        "zpool-status(8); zpool-clear(8)",
        "run `zpool status -v` to list the damaged files, and restore them, for example with `zsnapdb rescue`",
        _errors,
    ),
    Rule(
        "pool-space",
        f"The pool is less than {FULL_PERCENT} % full.",
        "The fuller a pool is, the longer ZFS searches for free space. Snapshots and clones keep the blocks that the"
        " server overwrites.",
        'OpenZFS documentation, "Workload Tuning", "Free Space" (keep at least 10 % free); zsnapdb has its own limit',
        "destroy clones that nobody needs (`zsnapdb clone list`), or add a device; `zfs list -o space` shows which"
        " datasets use the space: see Full pool in Troubleshooting",
        _space,
    ),
    Rule(
        "pool-fragmentation",
        f"The free space of the pool is less than {FRAGMENTED_PERCENT} % fragmented.",
        "In fragmented free space, ZFS splits a sequential write into many small writes, and finds no large segment"
        " for the intent log.",
        "zpoolprops(7), fragmentation (of free space, not of files); zsnapdb has its own limit",
        "remove snapshots and clones, or add a device; both reduce the fragmentation, but do not end it",
        _fragmentation,
    ),
    Rule(
        "pool-scrub",
        f"The last scrub is at most {SCRUB_LIMIT.days} days old.",
        "Without a scrub, damage to data that nobody reads is not detected until the other copy is damaged too.",
        "zpool-scrub(8); Debian and Ubuntu scrub once a month, and the limit is a few days longer",
        "scrub once a month, with zfs-scrub-monthly@POOL.timer of OpenZFS or with /etc/cron.d/zfsutils-linux",
        _scrub,
    ),
    Rule(
        "pool-trim",
        "Devices that support TRIM are trimmed.",
        "A flash device that was once full stays slow until ZFS tells the device which blocks are free.",
        "zpoolprops(7), autotrim; zpool-trim(8)",
        "trim once a month, or set autotrim=on",
        _trim,
    ),
    Rule(
        "ashift",
        "ZFS uses devices with sectors of 4K or more (ashift 12).",
        "If ZFS uses smaller sectors on a device with sectors of 4K, the device reads and writes a whole 4K sector for"
        " each smaller one. The ashift of a device never changes.",
        'OpenZFS documentation, "Workload Tuning", "Alignment Shift (ashift)"; zpoolprops(7), ashift',
        "create a new pool with `zpool create -o ashift=12`, and restore into it",
        _ashift,
    ),
    Rule(
        "slog-mirror",
        "The log device has a mirror.",
        "If a log device without a mirror fails together with the host, the last commits that the server acknowledged"
        " to clients are lost.",
        "zpoolconcepts(7), Intent Log",
        "attach a second device to the log device",
        _log_mirror,
    ),
    Rule(
        "slog-in-memory",
        "The log device keeps its contents when the power fails.",
        "A log device in memory loses its contents at every restart. The commits in that log are lost, and the pool"
        " comes back degraded or not at all.",
        "an experiment with the intent log on a RAM disk (2009); zpool-import(8), -m",
        "remove the log device; if you accept such a loss, innodb_flush_log_at_trx_commit = 2 is as fast",
        _log_in_memory,
    ),
)
