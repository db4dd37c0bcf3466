"""The state of a move of a server's files: the record on this host, and facts from the kernel and ZFS.

The record contains the last phase that the move is known to have reached. It is synced to disk before the next step
begins.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import DamagedError
from zsnapdb.jobs.host import dataset_use_checks, tree_copy
from zsnapdb.mysql.process import discovery
from zsnapdb.mysql.process.discovery import DiscoveredProcess
from zsnapdb.planning.setup.move import (
    MOVE_RECORD,
    CopiesState,
    MoveFacts,
    MovePhase,
    OldState,
    ServedPlace,
    ServerMove,
)
from zsnapdb.zfs import command, datasets, snapshots
from zsnapdb.zfs.mounts import mounted

_SYNC_SECONDS = 900.0
_SHOW_SECONDS = 30.0


@dataclass(frozen=True)
class MoveRecord:
    """The record of a move that has started. Each field is empty until its value is known.

    `created` contains the GUIDs of the datasets that this move created. `copied` contains the GUIDs of the snapshots
    with the compared copies. Both lists have the order of the datasets. `source` is the fingerprint of the old files at
    the time of the comparison. `words` is the command line of the server when it ran on its old files.
    """

    move: ServerMove
    phase: MovePhase
    created: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    source: str = ""
    words: tuple[str, ...] = ()


@functools.cache
def _form() -> TypeAdapter[MoveRecord]:
    return TypeAdapter(MoveRecord)


def journal() -> Path:
    """Return the file with the record of an unfinished move."""
    return Path(MOVE_RECORD)


def recorded() -> MoveRecord | None:
    """Return the record of an interrupted move; None if there is none.

    Older versions of zsnapdb recorded no phase. Such a record gets the phase UNKNOWN, which proves nothing.

    Raises:
        DamagedError: the content of the file is not a valid record.
    """
    try:
        text = journal().read_bytes()
    except FileNotFoundError:
        return None
    with contextlib.suppress(ValidationError):
        return _form().validate_json(text)
    try:
        return MoveRecord(TypeAdapter(ServerMove).validate_json(text), MovePhase.UNKNOWN)
    except ValidationError as error:
        hint = "compare the old data directory and the datasets by hand, then remove the file"
        raise DamagedError(f"{journal()} does not describe a move of files", hint=hint) from error


def write(record: MoveRecord) -> MoveRecord:
    """Write the record, sync it to disk, and return it."""
    files.replace(journal(), _form().dump_json(record))
    return record


def remove() -> None:
    """Remove the record of a move that has ended."""
    journal().unlink()
    files.sync_folder(journal().parent)


@dataclass(frozen=True)
class MovedServer:
    """The place where the server of a move is running.

    If `listens` is set, the server accepts connections, which shows that it has recovered.

    If `pid` is 0, there is no process. `state` is the systemd state of the unit.
    """

    place: ServedPlace
    pid: int = 0
    datadir: str = ""
    listens: bool = False
    state: str = ""

    @property
    def shown(self) -> str:
        """The process and its data directory, as text for people."""
        return f"process {self.pid} in {self.datadir}" if self.pid else ""


def is_moved(socket: Path | None) -> bool:
    """Return whether the server with this socket is down because `zsnapdb setup` has not finished moving it.

    Raises:
        DamagedError: the record of the move cannot be read.
    """
    started = recorded()
    if started is None or str(socket) not in started.move.server.sockets:
        return False
    return running_server(started.move).place is ServedPlace.NOWHERE


def running_server(move: ServerMove) -> MovedServer:
    """Return where the server is running. The working directory of its process shows this.

    A process on the copies or on the old files is found even if it belongs to another unit.
    """
    words = ["systemctl", "show", "--property=MainPID", "--property=ActiveState", move.files.service]
    shown = dict(line.partition("=")[::2] for line in command.run(words, timeout=_SHOW_SECONDS).split("\n"))
    main, state = shown.get("MainPID", ""), shown.get("ActiveState", "")
    seen = [(process, _place(process.pid, move)) for process in discovery.server_processes()]
    for wanted in (ServedPlace.NEW, ServedPlace.OLD):
        for process, place in seen:
            if place is wanted:
                return _running(process, place, state)
    for process, place in seen:
        if discovery.service_of(process.pid) == move.files.service:
            return _running(process, place, state)
    if main.isdecimal() and main != "0":
        # Ignore the error, because the process is about to become a server, or sees other mounts than this process.
        with contextlib.suppress(OSError):
            place = _place(int(main), move)
            return MovedServer(place, int(main), os.readlink(f"/proc/{main}/cwd"), state=state)
    return MovedServer(ServedPlace.NOWHERE, state=state)


def _running(process: DiscoveredProcess, place: ServedPlace, state: str) -> MovedServer:
    return MovedServer(place, process.pid, process.datadir, bool(process.sockets), state)


def _place(pid: int, move: ServerMove) -> ServedPlace:
    if dataset_use_checks.dataset_of(Path(f"/proc/{pid}/cwd")) == move.datasets[1].name:
        return ServedPlace.NEW
    return ServedPlace.OLD if _works_in(pid, move.server.datadir) else ServedPlace.OTHER


def _works_in(pid: int, folder: str) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", folder)
    except OSError:
        return False


def observe(record: MoveRecord) -> MoveFacts:
    """Return the observed state of the move, after pending writes are synced to the disks. Change nothing else."""
    move, server = record.move, running_server(record.move)
    is_there = [datasets.exists(new.name) for new in move.datasets]
    switched = _is_switched(move, has_dataset=is_there[0])
    return MoveFacts(
        phase=record.phase,
        is_switched=switched,
        runs=server.place,
        copies=CopiesState.CHANGED if server.place is ServedPlace.NEW else _copies(record, is_there),
        old=_old(record, is_switched=switched),
        where=server.shown,
        in_the_way=_in_the_way(move) if switched else "",
    )


def _is_switched(move: ServerMove, *, has_dataset: bool) -> bool:
    """Return whether the server would start on the copies.

    The server starts on the copies when the switch has renamed the folder or written the option file.
    """
    if not move.is_renaming:
        return os.path.lexists(move.fragment)
    name = move.datasets[0].name
    # An administrator may have removed the old files.
    is_placed = has_dataset and datasets.properties(name, ["mountpoint"])["mountpoint"].value == move.places.mount
    return is_placed or os.path.lexists(move.places.old)


def _in_the_way(move: ServerMove) -> str:
    """Return the mount point of the copies if it contains files that do not belong to this move; else ""."""
    place = move.places.mount
    if is_mounted(place, move.datasets[0].name) or not os.path.lexists(place):
        return ""
    return place if os.path.islink(place) or not os.path.isdir(place) or os.listdir(place) else ""


def is_mounted(path: str, dataset: str) -> bool:
    """Return whether this dataset is the topmost mount at the path."""
    last = {entry.path: entry for entry in mounted()}
    return path in last and last[path].fstype == "zfs" and last[path].source == dataset


def _copies(record: MoveRecord, is_there: list[bool]) -> CopiesState:
    """Return whether the datasets contain copies of the files, and whether the copies have changed.

    A move may be killed after it has created only one dataset, so `is_there` says which datasets exist.
    """
    move, (has_logs, has_data) = record.move, is_there
    if not has_logs:
        return CopiesState.EMPTY
    place = next((p for p in (move.places.staging, move.places.mount) if is_mounted(p, move.datasets[0].name)), None)
    if place is None or (has_data and not is_mounted(f"{place}/data", move.datasets[1].name)):
        return CopiesState.UNMOUNTED
    names = {*os.listdir(place), *(os.listdir(f"{place}/data") if has_data else ())}
    if not names - {"data", "lost+found"}:
        return CopiesState.EMPTY
    if not has_data:
        return CopiesState.UNPROVED
    if record.copied:
        return since_compared(record)
    created = tuple(datasets.guid(new.name) for new in move.datasets)
    is_own = record.phase is MovePhase.PLANNED and created == record.created
    return CopiesState.UNFINISHED if is_own else CopiesState.UNPROVED


def since_compared(record: MoveRecord) -> CopiesState:
    """Return whether the datasets have changed since the copies were compared and snapshotted.

    The property written@snapshot (zfsprops(7)) includes only blocks on the disks. Therefore `sync -f` (sync(1)) first
    writes all pending data to the disks, including changes through mapped memory.
    """
    names = {new.name for new in record.move.datasets}
    for entry in mounted():
        if entry.fstype == "zfs" and entry.source in names:
            command.run(["sync", "-f", entry.path], timeout=_SYNC_SECONDS)
    sync_pool(record.move)
    for new, guid in zip(record.move.datasets, record.copied, strict=True):
        name = snapshots.by_guid(new.name).get(guid)
        if name is None:
            return CopiesState.UNPROVED
        key = f"written@{name.partition('@')[2]}"
        if datasets.properties(new.name, [key])[key].value != "0":
            return CopiesState.CHANGED
    return CopiesState.UNCHANGED


def sync_pool(move: ServerMove) -> None:
    """Write all pending changes in the pool of the copies to its disks."""
    command.run(["zpool", "sync", move.datasets[0].name.partition("/")[0]], timeout=_SYNC_SECONDS)


def _old(record: MoveRecord, *, is_switched: bool) -> OldState:
    place = record.move.places.old if is_switched else record.move.server.datadir
    if not os.path.isdir(place):
        return OldState.GONE
    if not record.source or not is_switched:
        # A server that is running on these files may change them at any moment, so the comparison proves nothing.
        return OldState.UNPROVED
    return OldState.SAME if tree_copy.fingerprint(Path(place)) == record.source else OldState.CHANGED


def with_created(record: MoveRecord) -> MoveRecord:
    """Record the datasets that this move has just created. Copies in datasets of an earlier run are no longer used."""
    guids = tuple(datasets.guid(new.name) for new in record.move.datasets)
    return write(replace(record, phase=MovePhase.PLANNED, created=guids, copied=(), source=""))
