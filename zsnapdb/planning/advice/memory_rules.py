"""Rules about memory, and about the parameters of the ZFS module. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from zsnapdb.base.quantities import size
from zsnapdb.planning.advice.facts import AdviceFacts
from zsnapdb.planning.advice.rule import Area, Hit, Rule

_MEMORY_SHARE = 0.9
"""The part of the memory that buffer pool and ARC may fill together. The rest is for connections and the system."""
_ARC_FLOOR = 0.005
"""The smallest ARC, as a part of the data, where there is no L2ARC."""


def _memory(facts: AdviceFacts) -> Iterator[Hit]:
    total, arc, pool = facts.memory.total, facts.memory.arc_max, facts.variable_number("innodb_buffer_pool_size")
    if total is None or arc is None or pool is None or arc + pool <= total * _MEMORY_SHARE:
        return
    limit = max(int(total * _MEMORY_SHARE) - pool, total // 20)
    yield Hit(
        f"the ARC may grow to {size(arc)} and the buffer pool has {size(pool)}, of {size(total)} of memory",
        f"options zfs zfs_arc_max={limit} in /etc/modprobe.d/zfs.conf; at once:"
        f" echo {limit} > /sys/module/zfs/parameters/zfs_arc_max",
    )


def _arc_floor(facts: AdviceFacts) -> Iterator[Hit]:
    arc, data = facts.memory.arc_max, facts.data_bytes
    if arc is None or data is None or (facts.pool is not None and facts.pool.devices_of("cache")):
        return
    if arc < data * _ARC_FLOOR:
        yield Hit(
            f"the ARC may grow to {size(arc)}, for {size(data)} of data",
            f"options zfs zfs_arc_max={int(data * _ARC_FLOOR)} in /etc/modprobe.d/zfs.conf, or a cache device",
        )


def _cache_flushes(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.memory.parameters.get("zfs_nocacheflush", "0") == "1":
        yield Hit("zfs_nocacheflush is 1")


def _corrupt_data(facts: AdviceFacts) -> Iterator[Hit]:
    if facts.memory.parameters.get("zfs_send_corrupt_data", "0") == "1":
        yield Hit("zfs_send_corrupt_data is 1")


MEMORY_RULES = (
    Rule(
        "memory",
        Area.MEMORY,
        "The ARC and the buffer pool fit into the memory together.",
        "The ARC gives memory back late. Until then the kernel swaps, or kills the largest process: the server.",
        "zfs(4), zfs_arc_max: by default half of the memory up to OpenZFS 2.2, from 2.3 on the larger of all but 1 GiB"
        " and five eighths",
        "set zfs_arc_max",
        _memory,
    ),
    Rule(
        "arc-floor",
        Area.MEMORY,
        "Without a cache device the ARC can hold 0.5 % of the data.",
        "So much is about the metadata of the data. Without it each read first reads blocks that say where it lies.",
        'Percona, "MySQL and ZFS" (2019): about 5 GB for 1 TB, "not a hard rule"',
        "let the ARC grow (zfs_arc_max), or add a cache device",
        _arc_floor,
    ),
    Rule(
        "zfs-nocacheflush",
        Area.MEMORY,
        "ZFS empties the caches of disks (zfs_nocacheflush = 0).",
        "Otherwise a power cut can take what ZFS believes to be on the disk, and damage the pool. The advice to set it"
        " was for arrays with a battery. On FreeBSD it is vfs.zfs.nocacheflush (not tried here).",
        "zfs(4), zfs_nocacheflush",
        "set it to 0; a log device with power-loss protection makes synchronous writes fast",
        _cache_flushes,
    ),
    Rule(
        "zfs-send-corrupt-data",
        Area.MEMORY,
        "A send of a damaged block fails (zfs_send_corrupt_data = 0).",
        "With 1 `zfs send` stores a pattern instead of the block, and the backup looks whole.",
        "zfs(4), zfs_send_corrupt_data",
        "set it to 0",
        _corrupt_data,
    ),
)
