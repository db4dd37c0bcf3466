"""Moves a server's files to ZFS. The steps are: check, create, stop, copy, compare, switch and start.

The old files are kept.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from pydantic import SecretStr

from zsnapdb.base import files, safe_open
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import CommandError, ConsistencyError, ExistsError, PreflightError, ServerError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.base.quantities import size
from zsnapdb.base.safe_open import Owner
from zsnapdb.jobs.base.events import uninterrupted
from zsnapdb.jobs.host import tree_copy
from zsnapdb.jobs.steps import move_state
from zsnapdb.jobs.steps.move_state import MovedServer, MoveRecord, is_mounted
from zsnapdb.mysql import variables
from zsnapdb.mysql.process import process_managers
from zsnapdb.mysql.process.discovery import FOLDER_VARIABLES, DiscoveredProcess, RootObservation, service_of
from zsnapdb.mysql.process.service import ServingProcess, serving
from zsnapdb.mysql.process.written_paths import links_in
from zsnapdb.mysql.session import Address, Session
from zsnapdb.planning.backup.placement import MountedFilesystem
from zsnapdb.planning.server_family import family
from zsnapdb.planning.setup.facts import FoundFiles, overridden, with_option_file
from zsnapdb.planning.setup.move import (
    FRAGMENT,
    MOVE_PROPERTY,
    MOVE_SNAPSHOT,
    CopiesState,
    MoveFacts,
    MovePhase,
    MoveStep,
    ServedPlace,
    ServerMove,
    decide,
    may_go_back,
    option_folders,
    places,
)
from zsnapdb.zfs import command, datasets, destruction, mounting, snapshots
from zsnapdb.zfs.destruction import Mark
from zsnapdb.zfs.snapshots import PendingSnapshots


def files_of(
    process: DiscoveredProcess, flavour: Flavour, seen: RootObservation, mounts: Sequence[MountedFilesystem]
) -> FoundFiles:
    """Return the facts about this server's files that are needed to plan a move."""
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
    """Return the folder of option files on this host that the server reads; "" if there is none."""
    return next((name for name in option_folders(flavour) if os.path.isdir(name)), "")


def server_id_file(flavour: Flavour) -> str:
    """Return the path of the option file for a new server_id after a rewind; "" if it is not needed or not possible.

    Every server of the host may read this file's folder. Therefore the file is used only if the host has a single
    server.
    """
    if family(flavour).has_uuid:
        return ""
    folder = option_folder(flavour)
    return f"{folder}/zz-zsnapdb-rewind.cnf" if folder else ""


def size_of_files(folder: Path) -> int:
    """Return the size of the files below a folder in bytes.

    Files that are removed while the size is computed are skipped.
    """
    total = 0
    for parent, _, names in os.walk(folder, onerror=None, followlinks=False):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


_TRIES = 5


def copy_and_compare(move: ServerMove, tell: Callable[[str], None]) -> None:
    """Copy every file, and compare every copy.

    All other files in the new datasets are removed. The caller must check that this is safe. Raises ConsistencyError if
    a copy differs from its original.
    """
    source, logs = Path(move.server.datadir), Path(move.places.staging)
    data = logs / "data"
    tell(f"Copy the files of {source}")
    names = set(os.listdir(source)) - {"lost+found"}
    logs_now = os.listdir(move.binlog_folder) if move.binlog_folder else []
    binlogs = [name for name in logs_now if move.is_binlog(name)]
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
    for origin, done, target in copied:
        tree_copy.compare(origin, done, target)
    _finish(move, source, logs, data)


def snapshot(move: ServerMove) -> tuple[int, ...]:
    """Snapshot both datasets atomically. Return the snapshots' GUIDs in the order of the datasets."""
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
    """Snapshot the copies, and return the snapshots' GUIDs. The snapshots later show whether a copy has changed.

    ZFS itself may write to a dataset after a sync (observed after `sync -f`), and such a write looks like a change of
    the copies. Therefore the snapshots are created again until no write follows. If a write follows every attempt, the
    copies are later treated as changed.
    """
    for _ in range(_TRIES):
        kept = snapshot(record.move)
        if move_state.since_compared(replace(record, copied=kept)) is CopiesState.UNCHANGED:
            break
    return kept


def _finish(move: ServerMove, source: Path, logs: Path, data: Path) -> None:
    """Change the owner of the folders to the server's account, and write the binlog index with the new paths."""
    status = os.lstat(source)
    owner = Owner(status.st_uid, status.st_gid)
    if move.index:
        text = move.listed(safe_open.read_text(Path(move.files.binlog_index)))
        safe_open.write_text(logs / f"{move.binlog_name}.index", text, owner, 0o640)
    for folder in (data, logs):
        os.chown(folder, owner.uid, owner.gid, follow_symlinks=False)
        os.chmod(folder, stat.S_IMODE(status.st_mode))


Tell = Callable[[str], None]
_SERVICE_SECONDS = 900.0
"""The maximum time in seconds that systemd may take to stop or start a server.

A stopping server may first write its buffer pool.
"""
_ANSWER_SECONDS = 120.0
_POLL_SECONDS = 0.25
_SHOW_SECONDS = 30.0
_ENDED = ("failed", "inactive")
"""The states in which systemd does not start a unit by itself (systemctl(1), ActiveState)."""


def execute(move: ServerMove, step: MoveStep = MoveStep.COPY, tell: Tell = lambda _: None) -> None:
    """Execute the planned step. Afterwards the server is running on ZFS, and its old files are in `move.places.old`.

    Raises PreflightError, before any change, if another step must be executed first. After any other error, the server
    runs on its old files, unless the error message says otherwise. The same setup command can then continue.
    """
    make_private(move_state.journal().parent)
    before = move_state.recorded()
    if before is None:
        for new in move.datasets:
            if datasets.exists(new.name):
                raise ExistsError(f"{new.name} was made meanwhile", hint="run the same setup again")
    record = before or MoveRecord(move, MovePhase.PLANNED)
    facts = move_state.observe(record)
    decision = decide(move, facts)
    if decision.step is None:
        raise PreflightError(decision.why, hint=decision.hint)
    if (record.move, decision.step) != (move, step):
        raise PreflightError("the server or its files changed since the plan", hint="run the same setup again")
    _Moving(move_state.write(record), _always(tell)).do(step, facts)


def _always(tell: Tell) -> Tell:
    """Return a function that calls `tell` and ignores its errors. A closed terminal then does not stop the move."""

    def safe(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            tell(text)

    return safe


class _Moving:
    def __init__(self, record: MoveRecord, tell: Tell) -> None:
        self.record = record
        self.move = record.move
        self.tell = tell

    def do(self, step: MoveStep, facts: MoveFacts) -> None:
        with ExitStack() as until_end:
            if step is MoveStep.COPY:
                self._prepare(facts)
                try:
                    with uninterrupted(self.tell):
                        self.tell("Stop the server")
                        _systemctl(self.move.stop)
                        self._check_stopped()
                    self._copy()
                    # From here on, signals are deferred, because an interruption would leave the server stopped.
                    until_end.enter_context(uninterrupted(self.tell))
                    self._switch()
                except BaseException as error:
                    with uninterrupted(self.tell):
                        self._start_on_old_files(error)
                    raise
            until_end.enter_context(uninterrupted(self.tell))
            if step is MoveStep.FINISH:
                self.tell("The server runs on ZFS: the move of its files has ended")
            else:
                self._start()
            wait_until_it_runs(self.move)
            self._end()

    def _reach(self, phase: MovePhase) -> None:
        self.record = move_state.write(replace(self.record, phase=phase))

    def _prepare(self, facts: MoveFacts) -> None:
        """Create the datasets and check that the files can be copied, while the server is still running.

        Copies from an earlier run are kept in a snapshot.
        """
        move = self.move
        process = serving(Path(move.server.datadir))
        if process is not None:
            self.record = move_state.write(replace(self.record, words=process.words))
        self._check_later_options()
        self.tell("Create the datasets")
        for new, words in zip(move.datasets, move.creations, strict=True):
            if not datasets.exists(new.name):
                command.run(words)
        destruction.prove([new.name for new in move.datasets], Mark(MOVE_PROPERTY, move.server.datadir))
        for path, new in zip((move.places.staging, f"{move.places.staging}/data"), move.datasets, strict=True):
            if not is_mounted(path, new.name):
                # Check that the dataset is mounted, because otherwise the copy would fill another disk.
                raise PreflightError(
                    f"{new.name} is not mounted at {path}",
                    hint=f"`zfs mount {new.name}`; to give the move up: {move.given_up(is_switched=False)}",
                )
        if facts.copies is not CopiesState.EMPTY:
            self._check_room()
            kept = snapshot(move) if facts.copies is CopiesState.UNFINISHED else self.record.copied
            name = snapshots.by_guid(move.datasets[0].name)[kept[0]]
            self.tell(f"Copy once more; what was copied before stays in the snapshots {name.partition('@')[2]}")
        self.record = move_state.with_created(self.record)

    def _check_later_options(self) -> None:
        """Raise ServerError if the server would ignore the option file of the move, before the server is stopped.

        An option without effect takes the place of this file, because the server may restart at any moment.
        """
        move = self.move
        try:
            files.replace(Path(move.fragment), move.option_probe.encode(), 0o644)
            printed = self._printed_options()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(move.fragment)
        if printed is not None:
            self._refuse_overridden(with_option_file(move.option_file, printed))

    def _check_room(self) -> None:
        """Raise PreflightError if the pool lacks space for a new copy next to the snapshot of an earlier copy."""
        needed, free = size_of_files(Path(self.move.server.datadir)), datasets.available(self.move.datasets[0].name)
        if free < needed:
            name = self.move.datasets[0].name
            raise PreflightError(
                f"{name} contains unused copies of the files; another copy takes {size(needed)}, and {size(free)}"
                " are free",
                hint=f"remove these copies: `zfs destroy -r {name}`, then run the same setup again",
            )

    def _check_stopped(self) -> None:
        """Raise ServerError if a process that may change the old files or the copies is still running."""
        seen = move_state.running_server(self.move)
        if seen.pid:
            raise ServerError(
                f"{' '.join(self.move.stop)} ended, and a server still runs: {seen.shown}",
                hint="find the service that starts it, stop it, and run the same setup again",
            )

    def _copy(self) -> None:
        """Copy and compare the files, snapshot the copies, and record the GUIDs of the snapshots."""
        source = Path(self.move.server.datadir)
        before = tree_copy.fingerprint(source)
        copy_and_compare(self.move, self.tell)
        kept = snapshot_of_copies(self.record)
        if tree_copy.fingerprint(source) != before:
            raise ConsistencyError(f"files in {source} changed while they were copied", hint="does a server still run?")
        self.record = move_state.write(replace(self.record, phase=MovePhase.COPIED, copied=kept, source=before))

    def _switch(self) -> None:
        """Replace the old files with the copies, so that the server next starts on the copies."""
        move = self.move
        self._check_stopped()
        self.tell("Put the copies in the place of the old files")
        self._reach(MovePhase.SWITCHED)
        if not move.is_renaming:
            self._write_option_file()
        else:
            # Write the option file after the rename. If the host reboots in between, neither the option file nor the
            # data directory exists, so the server cannot start. If only the option file existed, the server could start
            # in a schema named `data`, with the redo logs of the old files.
            if os.path.lexists(move.places.old):
                raise ExistsError(f"{move.places.old} already exists", hint="give it another name")
            try:
                # Do not use `mv`: if the folder cannot be renamed, `mv` would copy and remove the old files instead.
                os.rename(move.server.datadir, move.places.old)
            except OSError as error:
                raise PreflightError(
                    f"renaming {move.server.datadir} to {move.places.old}: {error.strerror}",
                    hint="the folder must be entirely on one filesystem (not in a lower layer of an overlay)",
                ) from error
            files.sync_folder(Path(move.places.old).parent)

    def _write_option_file(self) -> None:
        files.replace(Path(self.move.fragment), self.move.option_file.encode(), 0o644)

    def _start_on_old_files(self, error: BaseException) -> None:
        """Start the server again after an error before the switch. If it does not start, add a note to the error."""
        move = self.move
        if move.is_renaming and os.path.lexists(move.places.old) and not os.path.lexists(move.server.datadir):
            error.add_note("the server is stopped, and its files are replaced by copies; the same setup starts it")
            return
        self.tell("Start the server on its old files again")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(move.fragment)
            _systemctl(move.start)
        except (ZsnapdbError, OSError) as second:
            why = second.message if isinstance(second, ZsnapdbError) else second
            error.add_note(f"the server is stopped, and did not start on its old files: {why}")

    def _start(self) -> None:
        """Start the server on the copies. If that fails and the copies are unchanged, start it on its old files."""
        move = self.move
        self.tell("Start the server, and ask the kernel where its files are")
        try:
            self._write_option_file()
            if move.is_renaming and not is_mounted(move.places.mount, move.datasets[0].name):
                command.run_when_free(move.mount_at(move.places.mount))
            if not is_mounted(move.datadir, move.datasets[1].name):
                # After a power failure during the switch, the property may already be set. Setting it again would not
                # mount the dataset.
                mounting.mount_all(new.name for new in move.datasets)
            self._check_options()
            _systemctl(move.start)
            wait_until_it_runs(self.move)
        except (ZsnapdbError, OSError) as error:
            self._go_back(error)

    def _check_options(self) -> None:
        """Raise ServerError if the server would ignore the option file. A start without that file would corrupt files.

        The server program prints the options that it would use. If it cannot print them, the server is started anyway.
        """
        printed = self._printed_options()
        if printed is not None:
            self._refuse_overridden(printed)

    def _printed_options(self) -> str | None:
        """Return the options of the server's option files and of its command line; None if they cannot be printed."""
        process = ServingProcess(0, self.record.words)
        try:
            words = [self.move.server.program, *process.option_words, "--print-defaults"]
            printed = process_managers.run(words, timeout=_SHOW_SECONDS) if self.record.words else None
        except (ServerError, PreflightError):
            return None
        return None if printed is None else " ".join([printed, *process.words[1:]])

    def _refuse_overridden(self, options: str) -> None:
        wrong = overridden(self.move.option_file, options)
        if wrong:
            raise ServerError(
                f"the server would not use {self.move.fragment}: {', '.join(wrong)}",
                hint="remove these settings from its other option files and its command line, then run the same setup",
            )

    def _go_back(self, error: ZsnapdbError | OSError) -> NoReturn:
        """Start the server on its old files again, if the copies have not changed since they were made.

        Always raise an error that describes the resulting state.
        """
        move, why = self.move, error.message if isinstance(error, ZsnapdbError) else str(error)
        hint = error.hint if isinstance(error, ServerError) else ""
        hint = hint or f"see `journalctl -u {move.files.service}` and the server's log; the same setup tries again"
        is_back = False
        try:
            facts = move_state.observe(self.record)
            if may_go_back(facts):
                # Stop the server, because systemd may restart it repeatedly, and a restarted server could change the
                # copies.
                _systemctl(move.stop)
                facts = move_state.observe(self.record)
                if may_go_back(facts) and facts.runs is ServedPlace.NOWHERE:
                    self._put_back()
                    is_back = True
                else:
                    _systemctl(move.start)
        except (ZsnapdbError, OSError) as second:
            refused = ServerError(f"the server did not start on ZFS: {why}", hint=hint)
            left = second.message if isinstance(second, ZsnapdbError) else second
            refused.add_note(f"putting the server back on its old files failed too: {left}")
            raise refused from error
        if is_back:
            message = f"the server did not start on ZFS and runs on its old files again: {why}"
            raise ServerError(message, hint=hint) from error
        if facts.runs is ServedPlace.NEW:
            raise ServerError(f"the server runs on ZFS, but setup could not continue: {why}", hint=hint) from error
        give_up = f"To give up what is in {move.datasets[0].name}: {move.given_up(is_switched=True)}"
        if facts.runs is not ServedPlace.NOWHERE:
            give_up = f"It was not stopped: {facts.where}. Make a dump before you change more, its files may be in both"
        raise ServerError(
            f"the server did not start on ZFS: {why}. It was not put back on its old files: {_not_proved(facts)}",
            hint=f"{hint}. {give_up}",
        ) from error

    def _put_back(self) -> None:
        """Undo the switch. The copies are kept at the staging path. Each step can be repeated."""
        move = self.move
        self.tell("Put the server back on its old files")
        if move.is_renaming:
            command.run_when_free(move.mount_at(move.places.staging))
        # Remove the option file before the old files return, because no server may start on a mixture of both (see
        # `_switch`).
        with contextlib.suppress(FileNotFoundError):
            os.unlink(move.fragment)
            files.sync_folder(Path(move.fragment).parent)
        if move.is_renaming:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(move.server.datadir)
            os.rename(move.places.old, move.server.datadir)
            files.sync_folder(Path(move.places.old).parent)
        self._reach(MovePhase.COPIED)
        _systemctl(move.start)

    def _end(self) -> None:
        move = self.move
        self._reach(MovePhase.STARTED)
        self._ask_the_server()
        if move.is_renaming:
            # Remove the empty folder in which the copies were mounted, because ZFS does not remove it.
            with contextlib.suppress(OSError):
                os.rmdir(move.places.staging)
        mark = Mark(MOVE_PROPERTY, move.server.datadir)
        for name in snapshots.names_of([new.name for new in move.datasets]):
            if name.partition("@")[2].startswith(MOVE_SNAPSHOT) and destruction.is_ours(name, mark):
                destruction.destroy_snapshot(name, mark)
        move_state.remove()

    def _ask_the_server(self) -> None:
        """Query the server's data directory, if root can log in. Earlier steps know it only from the kernel."""
        try:
            with Session.open(Address("root", Path(self.move.server.sockets[0])), SecretStr("")) as session:
                datadir = variables.global_variables(session, ["datadir"])["datadir"].rstrip("/")
        except ServerError:
            self.tell("The server runs on ZFS. It lets root in no more without a password: it was not asked itself")
            return
        if os.path.realpath(datadir) != os.path.realpath(self.move.datadir):
            raise ServerError(
                f"the server runs on ZFS, but the server that answers on {self.move.server.sockets[0]} uses {datadir}",
                hint=f"see `ls -l /proc/*/cwd`; the move has ended: {self.move.forgotten}",
            )


def wait_until_it_runs(move: ServerMove) -> None:
    """Wait until the server has recovered on the copies and accepts connections.

    Raises ServerError if the server does not accept connections in time.
    """
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        seen = move_state.running_server(move)
        if seen.listens and seen.place is ServedPlace.NEW:
            return
        if seen.listens or time.monotonic() > deadline or (not seen.pid and seen.state in _ENDED):
            raise _not_there(move, seen)
        time.sleep(_POLL_SECONDS)


def _not_there(move: ServerMove, seen: MovedServer) -> ServerError:
    log = f"see `journalctl -u {move.files.service}` and the server's log; then run the same setup again"
    if seen.place is ServedPlace.NEW:
        why = f"{seen.shown} accepts no connection after {_ANSWER_SECONDS:.0f} s: it may still recover"
        return ServerError(f"{why}. It runs on ZFS and was not stopped", hint=log)
    if seen.pid:
        return ServerError(
            f"the server uses {seen.datadir}: a later option file or its command line sets datadir",
            hint=f"remove datadir, log_bin and innodb_log_group_home_dir there; {move.fragment} sets them",
        )
    return ServerError("it ended", hint=log)


def _not_proved(facts: MoveFacts) -> str:
    if facts.phase is not MovePhase.SWITCHED:
        return "it is not proved that no server ran on the copies"
    return {
        CopiesState.CHANGED: "the copies were changed, so the server may have run there and may have taken writes",
        CopiesState.UNCHANGED: "the old files are gone, or a server runs",
    }.get(facts.copies, "nothing proves that the copies are unchanged")


def _systemctl(words: tuple[str, ...]) -> None:
    try:
        command.run(words, timeout=_SERVICE_SECONDS)
    except CommandError as error:
        raise CommandError(error.message, hint=f"see `journalctl -u {words[-1]}`") from error
