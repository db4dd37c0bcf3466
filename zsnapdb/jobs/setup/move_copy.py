"""Copies the files of a stopped server to the datasets of a move, as the server is to find them there."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zsnapdb.base import server_files
from zsnapdb.base.server_files import Owner
from zsnapdb.jobs.host import tree_copy
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.steps.move_state import MoveRecord
from zsnapdb.planning.setup.move import MOVE_PROPERTY, MOVE_SNAPSHOT, ServerMove
from zsnapdb.planning.setup.move_state import CopiesState
from zsnapdb.zfs import snapshots
from zsnapdb.zfs.snapshots import PendingSnapshots

_TRIES = 5


def copy_and_compare(move: ServerMove, tell: Callable[[str], None]) -> None:
    """Copy every file, and compare every copy. Other files are removed from the datasets: the caller has proved them.

    ConsistencyError if a copy differs from its file.
    """
    source, logs = Path(move.server.datadir), Path(move.places.staging)
    data = logs / "data"
    tell(f"Copy the files of {source}")
    names = set(os.listdir(source)) - {"lost+found"}
    binlogs = _binlogs(move)
    in_logs = {name for name in names if move.is_log(name)}
    here = set(binlogs) | {move.index} if move.binlog_folder == str(source) else set()
    in_data = names - in_logs - here
    tree_copy.keep_only(data, in_data)
    tree_copy.keep_only(logs, {"data", *in_logs, *binlogs})
    parts = [(source, in_data, data), (source, in_logs, logs)]
    if binlogs:
        parts.append((Path(move.binlog_folder), set(binlogs), logs))
    copied = [(origin, tree_copy.copy_entries(origin, chosen, target), target) for origin, chosen, target in parts]
    tell(f"Compare {sum(len(files) for _, files, _ in copied)} copies with their files")
    for origin, files, target in copied:
        tree_copy.compare(origin, files, target)
    _finish(move, source, logs, data)


def snapshot(move: ServerMove) -> tuple[int, ...]:
    """Make a snapshot of both datasets at once. Return the GUIDs, in the order of the datasets."""
    move_state.sync_pool(move)
    short = f"{MOVE_SNAPSHOT}{secrets.token_hex(4)}"
    names = [f"{new.name}@{short}" for new in move.datasets]
    pending = PendingSnapshots.of(names, {MOVE_PROPERTY: move.server.datadir})
    pending.start()
    pending.finish()
    made = snapshots.describe(names)
    snapshots.check_one_group(made)
    return tuple(one.guid for one in made)


def snapshot_of_copies(record: MoveRecord) -> tuple[int, ...]:
    """Make the snapshots that prove later whether the copies changed. Return their GUIDs.

    ZFS may write to a dataset by itself after files in it were synced alone (seen after `sync -f`), and counts that
    as written. So snapshots are made until one is followed by no change. If none is, the copies count as changed later.
    """
    for _ in range(_TRIES):
        kept = snapshot(record.move)
        if move_state.since_compared(replace(record, copied=kept)) is CopiesState.UNCHANGED:
            break
    return kept


def _binlogs(move: ServerMove) -> list[str]:
    return [name for name in os.listdir(move.binlog_folder) if move.is_binlog(name)] if move.binlog_folder else []


def _finish(move: ServerMove, source: Path, logs: Path, data: Path) -> None:
    """Give the folders to the server, and list its binlogs where they are now."""
    status = os.lstat(source)
    owner = Owner(status.st_uid, status.st_gid)
    if move.index:
        text = move.listed(server_files.read_text(Path(move.files.binlog_index)))
        server_files.write_text(logs / f"{move.binlog_name}.index", text, owner, 0o640)
    for folder in (data, logs):
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)
        os.chmod(folder, stat.S_IMODE(status.st_mode))
