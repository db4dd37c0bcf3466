"""How ZFS and MySQL are laid out and tuned on FreeBSD: data with sources. zsnapdb was never tried there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.planning.setup.layout import NewDataset

_TUNABLES = "OpenZFS, tunables.cfg of its test suite"
_VNODES = "FreeBSD, sys/kern/vfs_subr.c"


@dataclass(frozen=True)
class FreeBsdTunable:
    """A parameter: its name on Linux ("" if there is none), on FreeBSD, and an older name of FreeBSD ("" if none).

    `rules` are the rules of the doctor that are about it.
    """

    linux: str
    name: str
    older: str
    meaning: str
    source: str
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class FreeBsdDataset:
    """A dataset of the layout of three, the setting of the server that leads to it, and what is known of it today."""

    dataset: NewDataset
    setting: str
    remark: str


TUNABLES = (
    FreeBsdTunable(
        "zfs_arc_max",
        "vfs.zfs.arc.max",
        "vfs.zfs.arc_max",
        "the greatest size of the ARC in bytes",
        f"{_TUNABLES}; FreeBSD Handbook, ZFS, Tuning (older name)",
        ("memory", "arc-floor"),
    ),
    FreeBsdTunable(
        "zfs_txg_timeout",
        "vfs.zfs.txg.timeout",
        "",
        "after how many seconds a transaction group is written at the latest",
        f"{_TUNABLES}; FreeBSD Handbook, ZFS, Tuning",
    ),
    FreeBsdTunable(
        "zfs_prefetch_disable",
        "vfs.zfs.prefetch.disable",
        "vfs.zfs.prefetch_disable",
        "1: no file is read ahead",
        f"{_TUNABLES}; FreeBSD Handbook, ZFS, Tuning (older name)",
    ),
    FreeBsdTunable(
        "l2arc_write_max",
        "vfs.zfs.l2arc.write_max",
        "vfs.zfs.l2arc_write_max",
        "how many bytes a second a cache device is filled with",
        f"{_TUNABLES}; FreeBSD Handbook, ZFS, Tuning (older name)",
    ),
    FreeBsdTunable(
        "zfs_nocacheflush",
        "vfs.zfs.nocacheflush",
        "vfs.zfs.cache_flush_disable",
        "1: ZFS does not empty the caches of disks; harmful, whatever older notes advise",
        "PostgreSQL, src/tools/ci/gcp_freebsd_repartition.sh; a note on MySQL on FreeBSD's ZFS (older name)",
        ("zfs-nocacheflush",),
    ),
    FreeBsdTunable(
        "zfs_send_corrupt_data",
        "vfs.zfs.send.corrupt_data",
        "",
        "1: `zfs send` stores a pattern in place of a damaged block",
        "OpenZFS, module/zfs/dmu_send.c (ZFS_MODULE_PARAM)",
        ("zfs-send-corrupt-data",),
    ),
    FreeBsdTunable(
        "",
        "vfs.vnode.param.limit",
        "kern.maxvnodes",
        "how many files the kernel knows at once; a server with many tables slows down when the count comes near it",
        f"{_VNODES} (the older name stays); a note on MySQL on FreeBSD's ZFS (250000)",
    ),
    FreeBsdTunable(
        "",
        "vfs.vnode.stats.count",
        "vfs.numvnodes",
        "how many files the kernel knows now",
        f"{_VNODES} (the older name stays)",
    ),
)

THREE_DATASETS = (
    FreeBsdDataset(
        NewDataset("POOL/mysql", {"mountpoint": "/var/db/mysql", "recordsize": "8K"}),
        "datadir = /var/db/mysql",
        "8K is for MyISAM. Since MySQL 5.6 each table of InnoDB has a file of its own, in the data directory: then 16K",
    ),
    FreeBsdDataset(
        NewDataset("POOL/mysql/iblog", {"recordsize": "128K"}),
        "innodb_log_group_home_dir = /var/db/mysql/iblog",
        "128K is the default of ZFS",
    ),
    FreeBsdDataset(
        NewDataset("POOL/mysql/ibdata", {"recordsize": "16K", "primarycache": "metadata"}),
        "innodb_data_home_dir = /var/db/mysql/ibdata",
        "holds the system tablespace alone where each table has a file; primarycache=all is what the doctor advises",
    ),
)
"""The layout of a note on MySQL on FreeBSD's ZFS."""
