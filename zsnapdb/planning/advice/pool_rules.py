"""Rules about the pool of an instance. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from zsnapdb.planning.advice.facts import AdviceFacts
from zsnapdb.planning.advice.rule import Area, Hit, Rule

SCRUB_LIMIT = timedelta(days=35)
"""A month and some days: Debian and Ubuntu scrub and trim once a month (/etc/cron.d/zfsutils-linux)."""
FULL_PERCENT = 80
FRAGMENTED_PERCENT = 70
_SECTOR_4K = 12
_REMOVABLE = ("log", "cache")
"""Roles of devices that leave a pool whenever one likes (zpool-remove(8))."""
_MEMORY_DEVICE = re.compile(r"/dev/z?ram\d*")


def _health(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    if pool is not None and pool.health != "ONLINE":
        bad = ", ".join(f"{device.path} {device.health}" for device in pool.devices if device.health != "ONLINE")
        yield Hit(
            f"the pool {pool.name} is {pool.health}" + (f": {bad}" if bad else ""), f"zpool status -v {pool.name}"
        )


def _errors(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.pool is not None and facts.pool.errors:
        yield Hit(f"the pool {facts.pool.name} has errors: {facts.pool.errors}", "")


def _space(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    if pool is not None and pool.capacity is not None and pool.capacity >= FULL_PERCENT:
        yield Hit(f"the pool {pool.name} is {pool.capacity} % full")


def _fragmentation(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    if pool is not None and pool.fragmentation is not None and pool.fragmentation >= FRAGMENTED_PERCENT:
        yield Hit(f"the free space of the pool {pool.name} is fragmented to {pool.fragmentation} %")


def _scrub(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    if pool is None or not pool.is_scrub_known:
        return
    since = pool.last_scrub or pool.created
    if since is None or facts.at - since <= SCRUB_LIMIT:
        return
    what = f"since {pool.last_scrub:%Y-%m-%d}" if pool.last_scrub else f"since it was made on {since:%Y-%m-%d}"
    yield Hit(f"the pool {pool.name} was not scrubbed {what}", f"zpool scrub {pool.name}, and a timer that repeats it")


def _trim(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    if pool is None or pool.autotrim is not False or not pool.untrimmed or pool.created is None:
        return
    if facts.at - pool.created > SCRUB_LIMIT:
        devices = ", ".join(pool.untrimmed)
        yield Hit(
            f"the pool {pool.name} has autotrim=off, and was never trimmed: {devices}",
            f"zpool trim {pool.name}, and a timer that repeats it; or zpool set autotrim=on {pool.name}",
        )


def _ashift(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.pool is None:
        return
    pool, lasting = facts.pool, []
    for device, ashift in sorted(facts.pool.ashifts.items()):
        role = pool.role_of(device)
        if 0 < ashift < _SECTOR_4K and role in _REMOVABLE:
            yield Hit(
                f"the {role} device {device} of the pool {pool.name} has ashift {ashift}",
                f"zpool remove {pool.name} {device}, then add it again: zpool add -o ashift=12 {pool.name} {role} ...",
            )
        elif 0 < ashift < _SECTOR_4K:
            lasting.append(f"{device} {ashift}")
    if lasting:
        yield Hit(f"devices of the pool {pool.name} have an ashift below {_SECTOR_4K}: {', '.join(lasting)}")


def _log_mirror(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    for device in pool.devices_of("log") if pool is not None else ():
        if pool is not None and not device.group and not _MEMORY_DEVICE.match(device.path):
            yield Hit(
                f"the log device {device.path} of the pool {pool.name} has no mirror",
                f"zpool attach {pool.name} {device.path} SECOND_DEVICE",
            )


def _log_in_memory(facts: AdviceFacts) -> Iterator[Hit]:
    pool = facts.pool
    for device in pool.devices_of("log") if pool is not None else ():
        if pool is not None and _MEMORY_DEVICE.match(device.path):
            yield Hit(f"the log device {device.path} is memory", f"zpool remove {pool.name} {device.path}")


POOL_RULES = (
    Rule(
        "pool-health",
        Area.POOL,
        "The pool is ONLINE.",
        "A pool that has lost a device has less redundancy, or none: the next failure can take the data.",
        "zpoolconcepts(7), Device Failure and Recovery; zpool-status(8)",
        "see `zpool status -v`, and replace the device with `zpool replace`",
        _health,
    ),
    Rule(
        "pool-errors",
        Area.POOL,
        "The pool knows no damaged file.",
        "`zpool status` lists data that no copy could repair. A backup that meets it ends with an error.",
        "zpool-status(8); zpool-clear(8)",
        "`zpool status -v` names the files; restore them, for example with `zsnapdb rescue`",
        _errors,
    ),
    Rule(
        "pool-space",
        Area.POOL,
        f"The pool is less than {FULL_PERCENT} % full.",
        "The fuller a pool, the longer ZFS looks for space, and snapshots and clones keep what the server overwrites.",
        'OpenZFS documentation, "Workload Tuning", "Free Space" (at least 10 %); the limit is ours',
        "add a device, or let `zsnapdb prune` and `zsnapdb reap` remove snapshots and clones; `zfs list -o space` shows"
        " what uses it",
        _space,
    ),
    Rule(
        "pool-fragmentation",
        Area.POOL,
        f"The free space of the pool is fragmented to less than {FRAGMENTED_PERCENT} %.",
        "Writes in sequence become many small ones, and synchronous writes find no large segment for the log.",
        "zpoolprops(7), fragmentation: of free space, not of files; the limit is ours",
        "free space helps: remove snapshots and clones, or add a device; only a new pool has none",
        _fragmentation,
    ),
    Rule(
        "pool-scrub",
        Area.POOL,
        f"The last scrub is not older than {SCRUB_LIMIT.days} days.",
        "What is damaged on a disk and is not read stays unknown until the other copy is damaged too.",
        "zpool-scrub(8); the limit is that of the monthly scrub of Debian and Ubuntu",
        "scrub once a month: zfs-scrub-monthly@POOL.timer of OpenZFS, or /etc/cron.d/zfsutils-linux",
        _scrub,
    ),
    Rule(
        "pool-trim",
        Area.POOL,
        "Devices that know TRIM are trimmed.",
        "A flash device that is not told what is free slows down when it was written full once.",
        "zpoolprops(7), autotrim; zpool-trim(8)",
        "trim once a month, or set autotrim=on",
        _trim,
    ),
    Rule(
        "ashift",
        Area.POOL,
        "Devices are used in sectors of 4K or more (ashift 12).",
        "A device with sectors of 4K that is used in smaller ones reads and writes a whole sector for each of them. The"
        " ashift of a device never changes.",
        'OpenZFS documentation, "Workload Tuning", "Alignment Shift (ashift)"; zpoolprops(7), ashift',
        "make a new pool with `zpool create -o ashift=12`, and restore into it",
        _ashift,
    ),
    Rule(
        "slog-mirror",
        Area.POOL,
        "A log device has a mirror.",
        "If it fails just when the host does, the last commits that clients were told of are lost.",
        "zpoolconcepts(7), Intent Log",
        "attach a second device to it",
        _log_mirror,
    ),
    Rule(
        "slog-in-memory",
        Area.POOL,
        "The log device keeps its content without power.",
        "A log in memory is lost with every restart: the commits in it are gone, and the pool comes back degraded or"
        " not at all.",
        "an experiment with the intent log on a RAM disk (2009); zpool-import(8), -m",
        "remove it; where such a loss does no harm, innodb_flush_log_at_trx_commit = 2 is as fast",
        _log_in_memory,
    ),
)
