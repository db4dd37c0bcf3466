"""The layout of a server on ZFS: its datasets with their properties, and the settings of the server for it. Pure.

Sources: the two-dataset layout of Percona's talk "MySQL and ZFS" (2019); OpenZFS documentation, "Workload Tuning";
zfsprops(7). Every property is one that a rule of the doctor finds good (`planning/advice`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.base.model import Flavour
from zsnapdb.planning.family import family

_KNOWS_ZSTD = (2, 0)
_HONOURS_DIRECT = (2, 3)
MOUNT = "/var/lib/mysql"
_COMMON = {"atime": "off", "xattr": "sa", "primarycache": "all", "logbias": "latency"}


@dataclass(frozen=True)
class NewDataset:
    """A dataset to be created, with its properties."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class KeptLogs:
    """What a server that is moved keeps of its logs: the name of its binlogs, "" if it wrote none so far.

    Relay logs that are there stay in the data directory: the server has their paths relative to it.
    """

    binlog: str
    has_relay_logs: bool


@dataclass(frozen=True)
class ServerLayout:
    """The datasets of a server, outermost first, and where its option file says that its files lie."""

    datasets: tuple[NewDataset, ...]
    datadir: str
    option_file: str


def two_datasets(
    name: str,
    flavour: Flavour,
    page_size: int,
    release: tuple[int, ...],
    mount: str = MOUNT,
    kept: KeptLogs | None = None,
) -> ServerLayout:
    """Return the layout with the dataset `name` for logs and one below it for pages. `kept`: of a moved server."""
    parent = {
        **_COMMON,
        "recordsize": "128K",
        "compression": "zstd" if release >= _KNOWS_ZSTD else "lz4",
        "mountpoint": mount,
    }
    data = {**_COMMON, "recordsize": f"{page_size >> 10}K", "compression": "lz4"}
    if release >= _HONOURS_DIRECT:
        # The ARC is of use to clones, sends and reads that miss the buffer pool.
        data["direct"] = "disabled"
    datasets = (NewDataset(name, parent), NewDataset(f"{name}/data", data))
    return ServerLayout(datasets, f"{mount}/data", option_file(flavour, mount, kept))


def option_file(flavour: Flavour, mount: str = MOUNT, kept: KeptLogs | None = None) -> str:
    """Return the fragment of the server's option file for the layout. Doublewrite stays as it is.

    A server that is moved and wrote binlogs keeps their format and its GTID settings: replicas may depend on them.
    """
    facts = family(flavour)
    binlog = f"{mount}/{kept.binlog if kept is not None and kept.binlog else 'binlog'}"
    is_first = kept is None or not kept.binlog
    gtids = (
        {"gtid_strict_mode": "ON"} if facts.numbers_always else {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    )
    lines = {
        "datadir": f"{mount}/data",
        "innodb_log_group_home_dir": mount,
        **({"aria_log_dir_path": mount} if facts.has_aria else {}),
        "log_bin": binlog,
        "log_bin_index": f"{binlog}.index",
        **({} if kept is not None and kept.has_relay_logs else {"relay_log": f"{mount}/relay"}),
        "innodb_use_native_aio": "OFF",
        "sync_binlog": "1",
        # A server that does not know it goes on (refman 8.4, "Program Option Modifiers").
        "loose_binlog_row_metadata": "FULL",
        **({"binlog_format": "ROW", **gtids} if is_first else {}),
    }
    body = "".join(f"{name} = {value}\n" for name, value in lines.items())
    head = (
        "# The server's files on ZFS: logs in the outer dataset, pages in the inner one. Written by `zsnapdb setup`.\n"
    )
    return f"{head}[{facts.option_section}]\n{body}"
