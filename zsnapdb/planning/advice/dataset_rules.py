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
    """Return a check that finds the volumes with a bad value of a property. `value` is the good value.

    `is_safe` says whether `doctor --fix` may set the good value.
    """

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
        "The record size of data is the page size of InnoDB.",
        "With a larger record every page that is written makes ZFS read and write a whole record. With a smaller one a"
        " page is several blocks: more metadata, less compression, and no page is written as one block. A file keeps"
        " the record size that it was made with, so the check `blocks` looks at the files themselves.",
        f'{_TUNING}"InnoDB"; zfsprops(7), recordsize',
        "set recordsize to innodb_page_size before the files are made, else rebuild the tables after it",
        _recordsize_of_data,
    ),
    Rule(
        "recordsize-logs",
        "A dataset that holds logs alone has records of 128K or more.",
        "Logs are written and read in sequence. Small records cost metadata and compression and gain nothing.",
        f'{_TUNING}"InnoDB"; zfsprops(7), recordsize',
        "set recordsize=128K",
        _recordsize_of_logs,
    ),
    Rule(
        "compression",
        "Compression is on.",
        "lz4 costs less than the input and output that it saves, and gives up early on what does not compress.",
        f'{_TUNING}"Compression"; zfsprops(7), compression',
        "set compression=lz4; what exists is compressed when it is written again",
        _each("compression", lambda value: value == "off", "lz4", is_safe=True),
    ),
    Rule(
        "primarycache",
        "The ARC caches data, not metadata alone.",
        "Without it each read that misses the buffer pool reads a whole record from the disk, also where a part was"
        " just read, and `zfs send`, clones and crash recovery read everything from the disk.",
        "openzfs/zfs issue 16993 (162 s against 10 s for one query), issues 6518, 4812 and 11810; zfsprops(7)",
        "set primarycache=all and limit the ARC by zfs_arc_max; keep metadata only if you measured it on your load",
        _each("primarycache", lambda value: value != "all", "all", of_data=True),
    ),
    Rule(
        "logbias",
        "Synchronous writes go for latency.",
        "throughput writes every synchronous write to its place in the pool at once: it leaves the log device unused"
        " and fragments the data.",
        f'zfsprops(7), logbias; {_TUNING}"InnoDB" advises throughput, measurements since then do not',
        "set logbias=latency; keep throughput only if you measured it on your load",
        _each("logbias", lambda value: value == "throughput", "latency", is_safe=True),
    ),
    Rule(
        "sync-disabled",
        "Synchronous writes are synchronous.",
        "With sync=disabled a power cut takes commits that clients were told of, up to the last seconds; a replica"
        " may then be ahead of its source.",
        "zfsprops(7), sync",
        "set sync=standard; where such a loss does no harm, innodb_flush_log_at_trx_commit = 2 says so in the server",
        _each("sync", lambda value: value == "disabled", "standard"),
    ),
    Rule(
        "atime",
        "A read of a file writes nothing.",
        "atime=on without relatime writes metadata after each read of a file, and makes increments larger.",
        "zfsprops(7), atime and relatime",
        "set atime=off",
        _atime,
    ),
    Rule(
        "xattr",
        "Extended attributes lie in the inodes.",
        "Where access control lists or SELinux use them, each look at a file otherwise reads a hidden directory and a"
        " file in it.",
        "zfsprops(7), xattr, of OpenZFS 2.1 (on means directories) and 2.2 (on means sa)",
        "set xattr=sa",
        _xattr,
    ),
    Rule(
        "redundant-metadata",
        "On disks without a mirror all metadata has a second copy.",
        "most and less save a few percent of the writes; one bad sector can then lose a whole part of a file.",
        f'zfsprops(7), redundant_metadata; {_TUNING}"InnoDB"',
        "set redundant_metadata=all",
        _redundant_metadata,
    ),
    Rule(
        "checksum",
        "ZFS checks what it reads.",
        "With checksum=off neither a read nor a scrub nor a backup notices damage of the disk.",
        "zfsprops(7), checksum",
        "set checksum=on",
        _each("checksum", lambda value: value == "off", "on", is_safe=True),
    ),
    Rule(
        "dedup",
        "Deduplication is off.",
        "Pages of a database are hardly ever equal, and every write looks into a table that soon outgrows the memory.",
        f'{_TUNING}"Deduplication"; zfsprops(7), dedup',
        "set dedup=off; what exists stays deduplicated until it is written again",
        _each("dedup", lambda value: value != "off", "off", is_safe=True),
    ),
)


SCRUB_LIMIT = timedelta(days=35)
"""The maximum age of a scrub: a month plus some days, because Debian and Ubuntu scrub and trim once a month
(/etc/cron.d/zfsutils-linux).
"""
FULL_PERCENT = 80
FRAGMENTED_PERCENT = 70
_SECTOR_4K = 12
_REMOVABLE = ("log", "cache")
"""Roles of devices that can be removed from a pool at any time (zpool-remove(8))."""
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
        "A pool that has lost a device has less redundancy, or none: the next failure can take the data.",
        "zpoolconcepts(7), Device Failure and Recovery; zpool-status(8)",
        "see `zpool status -v`, and replace the device with `zpool replace`",
        _health,
    ),
    Rule(
        "pool-errors",
        "The pool knows no damaged file.",
        "`zpool status` lists data that no copy could repair. A backup that meets it ends with an error.",
        "zpool-status(8); zpool-clear(8)",
        "`zpool status -v` names the files; restore them, for example with `zsnapdb rescue`",
        _errors,
    ),
    Rule(
        "pool-space",
        f"The pool is less than {FULL_PERCENT} % full.",
        "The fuller a pool, the longer ZFS looks for space, and snapshots and clones keep what the server overwrites.",
        'OpenZFS documentation, "Workload Tuning", "Free Space" (at least 10 %); the limit is ours',
        "add a device, or let `zsnapdb prune` and `zsnapdb reap` remove snapshots and clones; `zfs list -o space` shows"
        " what uses it",
        _space,
    ),
    Rule(
        "pool-fragmentation",
        f"The free space of the pool is fragmented to less than {FRAGMENTED_PERCENT} %.",
        "Writes in sequence become many small ones, and synchronous writes find no large segment for the log.",
        "zpoolprops(7), fragmentation: of free space, not of files; the limit is ours",
        "free space helps: remove snapshots and clones, or add a device; only a new pool has none",
        _fragmentation,
    ),
    Rule(
        "pool-scrub",
        f"The last scrub is not older than {SCRUB_LIMIT.days} days.",
        "What is damaged on a disk and is not read stays unknown until the other copy is damaged too.",
        "zpool-scrub(8); the limit is that of the monthly scrub of Debian and Ubuntu",
        "scrub once a month: zfs-scrub-monthly@POOL.timer of OpenZFS, or /etc/cron.d/zfsutils-linux",
        _scrub,
    ),
    Rule(
        "pool-trim",
        "Devices that know TRIM are trimmed.",
        "A flash device that is not told what is free slows down when it was written full once.",
        "zpoolprops(7), autotrim; zpool-trim(8)",
        "trim once a month, or set autotrim=on",
        _trim,
    ),
    Rule(
        "ashift",
        "Devices are used in sectors of 4K or more (ashift 12).",
        "A device with sectors of 4K that is used in smaller ones reads and writes a whole sector for each of them. The"
        " ashift of a device never changes.",
        'OpenZFS documentation, "Workload Tuning", "Alignment Shift (ashift)"; zpoolprops(7), ashift',
        "make a new pool with `zpool create -o ashift=12`, and restore into it",
        _ashift,
    ),
    Rule(
        "slog-mirror",
        "A log device has a mirror.",
        "If it fails just when the host does, the last commits that clients were told of are lost.",
        "zpoolconcepts(7), Intent Log",
        "attach a second device to it",
        _log_mirror,
    ),
    Rule(
        "slog-in-memory",
        "The log device keeps its content without power.",
        "A log in memory is lost with every restart: the commits in it are gone, and the pool comes back degraded or"
        " not at all.",
        "an experiment with the intent log on a RAM disk (2009); zpool-import(8), -m",
        "remove it; where such a loss does no harm, innodb_flush_log_at_trx_commit = 2 is as fast",
        _log_in_memory,
    ),
)
