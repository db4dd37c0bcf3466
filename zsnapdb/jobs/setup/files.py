"""Facts that decide whether the files of a server can be moved to ZFS. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.mysql.process.discovery import FOLDER_VARIABLES, DiscoveredProcess, RootObservation, service_of
from zsnapdb.mysql.process.paths import links_in
from zsnapdb.planning.backup.placement import MountedFilesystem
from zsnapdb.planning.server_family import family
from zsnapdb.planning.setup.facts import FoundFiles
from zsnapdb.planning.setup.move import FRAGMENT, option_folders, places


def files_of(
    process: DiscoveredProcess, flavour: Flavour, seen: RootObservation, mounts: Sequence[MountedFilesystem]
) -> FoundFiles:
    """Return the facts for a move of this server's files."""
    datadir, paths = process.datadir, seen.paths
    is_mount = any(mount.path == datadir for mount in mounts)
    below = [mount.path for mount in mounts if mount.path.startswith(f"{datadir}/")]
    where = places(datadir, is_mount=is_mount)
    folder = option_folder(flavour)
    made = (*(() if is_mount else (where.old,)), where.staging, f"{folder}/{FRAGMENT}")
    return FoundFiles(
        service=service_of(process.pid),
        is_mount=is_mount,
        binlog=os.path.join(datadir, paths["log_bin_basename"]) if paths.get("log_bin_basename") else "",
        binlog_index=os.path.join(datadir, paths["log_bin_index"]) if paths.get("log_bin_basename") else "",
        has_relay_logs=bool(paths.get("relay_log_index")) and os.path.exists(f"{datadir}/{paths['relay_log_index']}"),
        elsewhere=tuple(
            f"{name} = {paths[name]}"
            for name in FOLDER_VARIABLES
            if paths.get(name) and os.path.realpath(os.path.join(datadir, paths[name])) != os.path.realpath(datadir)
        ),
        obstacles=(*(link.what.removeprefix("symbolic link ") for link in links_in(datadir)), *below),
        option_folder=folder,
        taken=tuple(path for path in made if os.path.lexists(path)),
    )


def option_folder(flavour: Flavour) -> str:
    """Return the folder of this host whose option files the server reads, "" if there is none."""
    return next((name for name in option_folders(flavour) if os.path.isdir(name)), "")


def server_id_file(flavour: Flavour) -> str:
    """Return the option file for a new server_id after a rewind; "" if none is needed, or there is no folder.

    All servers of a host may read the folder, so only the single server of a host may have its server_id there.
    """
    if family(flavour).has_uuid:
        return ""
    folder = option_folder(flavour)
    return f"{folder}/zz-zsnapdb-rewind.cnf" if folder else ""


def size(folder: Path) -> int:
    """Return the size of the files below a folder in bytes. Files that disappear during the walk are skipped."""
    total = 0
    for parent, _, files in os.walk(folder, onerror=None, followlinks=False):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
