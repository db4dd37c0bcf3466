"""Moves the files of a server to ZFS: stop, create, copy, compare, switch, start. The old files are kept.

A file of this host (`journal`) has the move from before its first change until the server has answered on the copies.
A run that finds it goes on: until the switch it copies anew, since the server may have run meanwhile; after the switch
it starts the server on the copies. A server that does not come up there is put back on its old files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr, TypeAdapter, ValidationError

from zsnapdb import server_files, whole_file
from zsnapdb.errors import CommandError, DamagedError, PreflightError, ServerError, ZsnapdbError
from zsnapdb.jobs import tree_copy
from zsnapdb.jobs.host import THIS_HOST
from zsnapdb.jobs.private_folder import make_private
from zsnapdb.mysql import variables
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.setup.move import MOVE_PROPERTY, ServerMove
from zsnapdb.server_files import Owner
from zsnapdb.zfs import command, datasets, owned
from zsnapdb.zfs.mounts import mounted
from zsnapdb.zfs.owned import Mark

_MOVE = TypeAdapter(ServerMove)
_SERVICE_SECONDS = 900.0
"""How long systemd may take to stop or start a server: it writes its buffer pool first."""
_ANSWER_SECONDS = 120.0
_POLL_SECONDS = 0.25
_SYNC_SECONDS = 900.0


def journal() -> Path:
    """Return the file that has a move which began and did not end."""
    return THIS_HOST.records.with_name("setup") / "move.json"


def begun() -> ServerMove | None:
    """Return the move that was interrupted, None if there is none. DamagedError if its file is no move."""
    try:
        return _MOVE.validate_json(journal().read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        hint = "compare the old data directory and the datasets by hand, then remove the file"
        raise DamagedError(f"{journal()} does not describe a move of files", hint=hint) from error


def execute(move: ServerMove, tell: Callable[[str], None] = lambda _: None) -> None:
    """Move the files. Afterwards the server runs on ZFS, and its old files are in `move.places.old`.

    After an error the server runs on its old files, unless the error says otherwise; the same move goes on from there.
    """
    make_private(journal().parent)
    whole_file.replace(journal(), _MOVE.dump_json(move))
    if not _is_switched(move):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(move.fragment)
        tell("Create the datasets")
        for new, words in zip(move.datasets, move.creations, strict=True):
            if not datasets.exists(new.name):
                command.run(words)
        tell("Stop the server")
        try:
            _systemctl(move.stop)
            _copy(move, tell)
        except BaseException as error:
            tell("Start the server on its old files again")
            try:
                _systemctl(move.start)
            except ZsnapdbError as second:
                error.add_note(f"the server is stopped, and did not start on its old files: {second.message}")
            raise
        tell("Put the copies in the place of the old files")
        _switch(move)
    tell("Start the server, and ask it where its files are")
    _start(move, tell)
    journal().unlink()
    whole_file.sync_folder(journal().parent)


def _is_switched(move: ServerMove) -> bool:
    """Whether the server would start on the copies: the last step before that is the rename, or the option file."""
    return os.path.lexists(move.places.old if move.is_renaming else move.fragment)


def _copy(move: ServerMove, tell: Callable[[str], None]) -> None:
    source, logs = Path(move.server.datadir), Path(move.places.staging)
    data = logs / "data"
    owned.prove([new.name for new in move.datasets], Mark(MOVE_PROPERTY, move.server.datadir))
    _check_mounts({str(logs): move.datasets[0].name, str(data): move.datasets[1].name})
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


def _binlogs(move: ServerMove) -> list[str]:
    return [name for name in os.listdir(move.binlog_folder) if move.is_binlog(name)] if move.binlog_folder else []


def _finish(move: ServerMove, source: Path, logs: Path, data: Path) -> None:
    """Give the folders to the server, list its binlogs where they are now, and have all of it on the disks."""
    status = os.lstat(source)
    owner = Owner(status.st_uid, status.st_gid)
    if move.index:
        text = move.listed(server_files.read_text(Path(move.files.binlog_index)))
        server_files.write_text(logs / f"{move.binlog_name}.index", text, owner, 0o640)
    for folder in (data, logs):
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)
        os.chmod(folder, stat.S_IMODE(status.st_mode))
    command.run(["zpool", "sync", move.datasets[0].name.partition("/")[0]], timeout=_SYNC_SECONDS)


def _check_mounts(wanted: dict[str, str]) -> None:
    """Raise PreflightError unless the datasets are mounted where the copies go: else another disk would fill."""
    sources = {entry.path: entry.source for entry in mounted() if entry.fstype == "zfs"}
    for path, dataset in wanted.items():
        if sources.get(path) != dataset:
            raise PreflightError(
                f"{dataset} is not mounted at {path}",
                hint=f"`zfs mount {dataset}`; to give the move up: `zfs destroy` both datasets, remove {journal()}",
            )


def _switch(move: ServerMove) -> None:
    """Put the copies in the place of the old files. From here on the server has to start on them."""
    whole_file.replace(Path(move.fragment), move.option_file.encode(), 0o644)
    if move.is_renaming:
        command.run(move.rename)
        whole_file.sync_folder(Path(move.places.old).parent)


def _start(move: ServerMove, tell: Callable[[str], None]) -> None:
    whole_file.replace(Path(move.fragment), move.option_file.encode(), 0o644)
    if move.is_renaming and not _is_mounted(move.places.mount, move.datasets[0].name):
        command.run_when_free(move.mount_at(move.places.mount))
    if move.is_renaming:
        # ZFS leaves the folder where the copies were mounted. It is empty.
        with contextlib.suppress(OSError):
            os.rmdir(move.places.staging)
    try:
        _systemctl(move.start)
        _wait_until_it_answers(move)
    except ZsnapdbError as error:
        tell("Put the server back on its old files")
        hint = f"see `journalctl -u {move.files.service}` and the server's log; the same setup tries again"
        try:
            _put_back(move)
        except (ZsnapdbError, OSError) as second:
            refused = ServerError(f"the server did not start on ZFS: {error.message}", hint=hint)
            why = second.message if isinstance(second, ZsnapdbError) else second
            refused.add_note(f"putting the server back on its old files failed too: {why}")
            raise refused from error
        raise ServerError(
            f"the server did not start on ZFS and runs on its old files again: {error.message}", hint=hint
        ) from error


def _is_mounted(path: str, dataset: str) -> bool:
    return any((entry.path, entry.fstype, entry.source) == (path, "zfs", dataset) for entry in mounted())


def _put_back(move: ServerMove) -> None:
    """Undo the switch. The copies stay where they were made. Each step can run twice."""
    _systemctl(move.stop)
    if move.is_renaming:
        command.run_when_free(move.mount_at(move.places.staging))
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(move.server.datadir)
        os.rename(move.places.old, move.server.datadir)
        whole_file.sync_folder(Path(move.places.old).parent)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(move.fragment)
    _systemctl(move.start)


def _wait_until_it_answers(move: ServerMove) -> None:
    """Return when the server says that its data directory is the new one. ServerError if it does not come to that."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            with Session.open(Address("root", Path(move.server.sockets[0])), SecretStr("")) as session:
                datadir = variables.global_variables(session, ["datadir"])["datadir"].rstrip("/")
            break
        except ServerError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)
    if datadir != move.datadir:
        raise ServerError(
            f"the server uses {datadir}: a later option file or its command line sets datadir",
            hint=f"remove datadir, log_bin and innodb_log_group_home_dir there; {move.fragment} sets them",
        )


def _systemctl(words: tuple[str, ...]) -> None:
    try:
        command.run(words, timeout=_SERVICE_SECONDS)
    except CommandError as error:
        raise CommandError(error.message, hint=f"see `journalctl -u {words[-1]}`") from error
