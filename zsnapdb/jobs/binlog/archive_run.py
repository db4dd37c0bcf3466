"""`zsnapdb binlog archive`: archives binlogs once or continuously."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from zsnapdb.base.domain_types import BinlogCoordinates
from zsnapdb.base.errors import (
    BusyError,
    ConsistencyError,
    DamagedError,
    NotFound,
    PreflightError,
    RepositoryError,
    ServerError,
    ZsnapdbError,
)
from zsnapdb.base.program_start import Running, Stop
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.base.run_locks import lock_instance
from zsnapdb.jobs.binlog.archive_round import Round
from zsnapdb.jobs.binlog.archiver import Archiver, CompletenessRecorder
from zsnapdb.jobs.binlog.server_binlogs import BinlogSource, LocalFiles, find_source
from zsnapdb.jobs.health.recovery_coverage import read, repeated
from zsnapdb.jobs.host.volume_space import open_session
from zsnapdb.jobs.record import own_archived_binlogs
from zsnapdb.planning.backup.dataset_encryption import judge_storing
from zsnapdb.planning.backup.fitness import require_fit
from zsnapdb.planning.backup.placement import MountedFilesystem, mount_of
from zsnapdb.planning.binlog.archive import ServerBinlog
from zsnapdb.planning.binlog.archive_times import CommitHorizon, RoundTimer, record_interval
from zsnapdb.planning.binlog.failover_history import RepeatedGtids
from zsnapdb.planning.binlog.route import RouteEnd
from zsnapdb.repository.binlog_archive import BinlogArchive
from zsnapdb.zfs import encryption
from zsnapdb.zfs.mounts import mounted

_AGAIN = 300.0
"""The time in seconds from a failed backup to the next attempt."""


def command_of(instance: str, config: Path | None) -> tuple[str, ...]:
    """Return the command line that makes a backup of an instance."""
    options = () if config is None else ("--config", str(config))
    return (sys.executable, "-m", "zsnapdb", "backup", instance, *options)


def start_command(command: Sequence[str]) -> Running:
    """Start the command. It continues even if the archiver ends."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None,
        start_new_session=True,
        env=dict(os.environ),
    )


class NewHistoryWatch:
    """Watches for a new binlog history that cannot be replayed on any backup yet.

    The watch warns once about each such history. It also starts a backup if `backup_on_new_history` is configured.
    """

    def __init__(
        self, instance: Instance, start: Callable[[], Running], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instance, self._start, self._clock = instance, start, clock
        self._is_known = False
        self._needed: RouteEnd | None = None
        self._repeated: tuple[RepeatedGtids, ...] = ()
        self._running: Running | None = None
        self._again_at = 0.0

    def after(self, result: Round) -> None:
        """Warn or start a backup if this round began a binlog history that cannot be replayed on any backup.

        Raises:
            RepositoryError: the repository cannot be read.
        """
        if result.new_incarnation or result.gaps:
            self._is_known = False
        if not self._is_known and result.end is not None:
            self._look_at_gtids()
            self._look()
        if self._running is not None:
            self._wait_for(self._running)
        elif self._needed is not None and self._is_automatic and self._clock() >= self._again_at:
            self._instance.events.tell("a backup of the new history begins")
            self._running = self._start()

    @property
    def _is_automatic(self) -> bool:
        return self._instance.settings.binlog.backup_on_new_history

    def _look(self) -> None:
        needed = read(self._instance, self._instance.open_repository()).window.unprotected
        self._is_known = True
        if needed is not None and needed != self._needed:
            hint = "" if self._is_automatic else f"; run `zsnapdb backup {self._instance.name}`"
            self._instance.events.warn(
                f"nothing that the server writes now can be restored before the next backup: {needed.reason}{hint}"
            )
        self._needed = needed

    def _look_at_gtids(self) -> None:
        repetitions = repeated(self._instance.archive(self._instance.open_repository()).load())
        for part in repetitions:
            if part not in self._repeated:
                self._instance.events.warn(f"{part.text}; {part.hint}")
        self._repeated = repetitions

    def _wait_for(self, running: Running) -> None:
        code = running.poll()
        if code is None:
            return
        self._running = None
        self._again_at = self._clock() + _AGAIN
        if code:
            self._instance.events.warn(f"the backup of the new history ended with {code}; trying again later")
        self._look()


_ROUNDS, _ROUND_SECONDS, _POLL_SECONDS = 3, 30.0, 1.0
"""How long `--once` waits for another archiver: rounds of it, the duration of a round, and the time between looks."""
_SHORTEST_PAUSE = 0.2
"""The shortest time in seconds between the starts of two rounds."""


def open_archive(instance: Instance) -> BinlogArchive:
    """Open the archive for writing. Create the repository if it does not exist yet."""
    return BinlogArchive(instance.open_or_create_repository(), instance.name)


def archiver_of(instance: Instance, source: BinlogSource) -> Archiver:
    """Return the archiver for the server's binlogs.

    Raises:
        PreflightError: the server encrypts its binlogs, but the repository would store them unencrypted.
    """
    if not instance.repository.encryption.recipients:
        mounts = [MountedFilesystem(entry.path, entry.fstype, entry.source) for entry in mounted()]
        mount = mount_of(str(source.folder), mounts)
        if mount is not None and mount.fstype == "zfs":
            cipher = encryption.at_rest([mount.source])[mount.source].cipher
            require_fit(judge_storing({} if cipher is None else {mount.source: cipher}, is_encrypting=False))
    return Archiver(instance, open_archive(instance), source)


def archive_once(instance: Instance) -> Round:
    """Archive everything that the server's binlogs contain now.

    If another archiver is running, such as the archiver of the agent, wait until it has archived this content.

    Raises:
        BusyError: the other archiver has not archived the content within a few of its rounds, or within `--wait`.
        PreflightError: the newest binlog cannot be archived. The other binlogs were archived.
    """
    deadline = time.monotonic() + max(instance.wait, _ROUNDS * instance.settings.binlog.interval + _ROUND_SECONDS)
    goal: ServerBinlog | None = None
    while True:
        with contextlib.ExitStack() as locked:
            try:
                locked.enter_context(lock_instance(instance.waiting(0.0), "binlog", "archiving the binlogs of"))
            except BusyError as error:
                is_late = time.monotonic() >= deadline
                if goal is None:
                    instance.events.tell(f"{error.message}; waiting until it has archived the present binlogs")
                    goal = _newest_binlog(instance)
                result = _archived_by_another(instance, goal) if goal is not None else None
                if result is not None:
                    return result
                if goal is None or is_late:
                    raise
            else:
                return _archive_now(instance)
        time.sleep(_POLL_SECONDS)


def _newest_binlog(instance: Instance) -> ServerBinlog | None:
    """Return the newest readable binlog of the server, with its current size; None if there is none."""
    with open_session(instance) as session:
        binlogs = LocalFiles(find_source(session)).list()
    return next((binlog for binlog in reversed(binlogs) if not binlog.problem), None)


def _archived_by_another(instance: Instance, goal: ServerBinlog) -> Round | None:
    """Return the state of the archive if the archive contains the binlog `goal` up to its recorded size; else None."""
    try:
        archive = instance.archive(instance.open_repository())
    except NotFound:
        # The other archiver has not created the repository yet.
        return None
    known, _ = own_archived_binlogs.known_part(instance, archive.repository, archive.load())
    for file in known.files:
        if file.fingerprint == goal.fingerprint and (file.is_rotated or file.end >= goal.size):
            return Round(
                end=BinlogCoordinates(file.name, file.end),
                gtids=file.reached,
                last_commit=file.last_commit,
                incarnation=file.incarnation,
                is_by_another=True,
            )
    return None


def _archive_now(instance: Instance) -> Round:
    """Archive once, under the lock of the archiver. Raises PreflightError for the same reason as `archive_once`."""
    recorder = CompletenessRecorder(instance.events, record_interval(instance.settings.objectives))
    with open_session(instance) as session:
        source = find_source(session)
        horizon = recorder.before(session)
    archiver = archiver_of(instance, source)
    result = recorder.after(archiver.look(), horizon, archiver.archive)
    if result.new_incarnation or result.gaps:
        stored = read(instance, instance.open_repository())
        result = replace(result, unprotected=stored.window.unprotected, repeated=repeated(stored.archive))
    if result.blocked is not None:
        raise PreflightError(
            f"the newest binlog of instance {instance.name} cannot be archived: {result.blocked}",
            hint=(
                "zsnapdb reads encrypted binlogs only with the key file of component_keyring_file or"
                " file_key_management; with another keyring, set binlog_encryption (MySQL) or encrypt_binlog"
                " (MariaDB) to OFF"
            ),
        )
    return result


def archive_continuously(instance: Instance, stop: Stop, start_backup: Callable[[], Running]) -> Round:
    """Archive binlogs in rounds until `stop` is set, and then do one last round.

    Warn if the newly archived binlogs cannot be replayed on any backup. In this case also call `start_backup` if
    `backup_on_new_history` is configured. While the repository is reachable, every transaction is stored within
    `binlog.interval` after its commit. If the server or the repository fails, the error is reported, and archiving
    continues.
    """
    with lock_instance(instance, "binlog", "archiving the binlogs of"):
        with open_session(instance) as session:
            source = find_source(session)
        archiver = archiver_of(instance, source)
        timer = RoundTimer(instance.settings.binlog.interval)
        notes = Notes(instance.events)
        watch = NewHistoryWatch(instance, start_backup)
        recorder = CompletenessRecorder(instance.events, record_interval(instance.settings.objectives))
        result = Round()
        while True:
            is_last, started = stop.is_set(), time.monotonic()
            try:
                source, archiver, horizon = _current(instance, archiver, source, recorder)
                result = recorder.after(archiver.look(lambda: _query_source(instance)), horizon, archiver.archive)
                notes.of(result)
                watch.after(result)
            except (RepositoryError, ConsistencyError, DamagedError, PreflightError, OSError) as error:
                if is_last and isinstance(error, ZsnapdbError):
                    raise
                notes.trouble(error)
                archiver = _renewed(instance, archiver, source)
            if is_last:
                return result
            elapsed = time.monotonic() - started
            timer = timer.after(elapsed)
            stop.wait(max(_SHORTEST_PAUSE, timer.pause - elapsed))


def _query_source(instance: Instance) -> BinlogSource | None:
    """Ask the server for the location of its binlogs, and return the source; None if the server does not answer."""
    try:
        with instance.session(read_timeout=5.0) as session:
            return find_source(session)
    except ServerError:
        return None


def _current(
    instance: Instance, archiver: Archiver, source: BinlogSource, recorder: CompletenessRecorder
) -> tuple[BinlogSource, Archiver, CommitHorizon | None]:
    """Return the source that the server describes now, an archiver for this source, and the commit horizon.

    If the server does not answer, return the given source and archiver, and None as the horizon.
    """
    try:
        with instance.session(read_timeout=5.0) as session:
            current = find_source(session)
            horizon = recorder.before(session)
    except ServerError:
        return source, archiver, None
    if current == source:
        return source, archiver, horizon
    return current, archiver_of(instance, current), horizon


def _renewed(instance: Instance, archiver: Archiver, source: BinlogSource) -> Archiver:
    """Return a new archiver that reads the archive again, because a failed request may have changed the archive.

    If the archive cannot be read, return the old archiver.
    """
    try:
        return archiver_of(instance, source)
    except (RepositoryError, DamagedError, NotFound, PreflightError, OSError):
        return archiver


class Notes:
    """Reports the events of archiving. A problem that lasts for several rounds is reported only once."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._trouble = ""
        self._problems: set[str] = set()

    def of(self, result: Round) -> None:
        """Report the results of a round, except problems that were already reported."""
        if self._trouble:
            self._events.tell("archiving continues")
            self._trouble = ""
        if result.new_incarnation:
            self._events.tell(f"a new incarnation begins: {result.new_incarnation}")
        for gap in result.gaps:
            self._events.warn(f"GAP: {gap}; no point in time from there to the next backup can be restored")
        for name in result.rotated:
            self._events.tell(f"{name} is archived completely")
        for problem in result.problems:
            if problem not in self._problems:
                self._events.warn(f"{problem}; this binlog is not archived")
        self._problems = set(result.problems)

    def trouble(self, error: BaseException) -> None:
        """Report an error, unless the previous round reported the same error."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            self._events.warn(f"{error}; trying again")
