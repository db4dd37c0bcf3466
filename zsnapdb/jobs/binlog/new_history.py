"""Asks for a backup, or starts it, while no backup leads to what the archiver archives.

This is so after a reset of the server's binlogs, a restore, some failovers, and a gap. The question is answered from
the repository when the archiver starts, and when a history or a gap begins. So is the question whether the server gives
GTIDs a second time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.binlog.round import Round
from zsnapdb.jobs.health.recoverable import read
from zsnapdb.jobs.health.repeated_gtids import repeated
from zsnapdb.planning.binlog.repeated_gtids import RepeatedGtids
from zsnapdb.planning.binlog.route import RouteEnd
from zsnapdb.repository.binlog_archive import BinlogArchive

_AGAIN = 300.0
"""Seconds after a failed backup until the next one is started: another run may be at work."""


class RunningBackup(Protocol):
    """A backup that was started."""

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""


def command_of(instance: str, config: Path | None) -> tuple[str, ...]:
    """Return the command that backs an instance up."""
    options = () if config is None else ("--config", str(config))
    return (sys.executable, "-m", "zsnapdb", "backup", instance, *options)


def start_command(command: Sequence[str]) -> RunningBackup:
    """Start the command. It goes on if the archiver ends."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None,
        start_new_session=True,
        env=dict(os.environ),
    )


class NewHistoryWatch:
    """Knows whether a backup is needed, says so once, and starts it if the configuration says so."""

    def __init__(
        self, instance: Instance, start: Callable[[], RunningBackup], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instance, self._start, self._clock = instance, start, clock
        self._is_known = False
        self._needed: RouteEnd | None = None
        self._repeated: tuple[RepeatedGtids, ...] = ()
        self._running: RunningBackup | None = None
        self._again_at = 0.0

    def after(self, result: Round) -> None:
        """Take note of a round of the archiver. RepositoryError if the repository cannot be read."""
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
        needed = needed_backup(self._instance)
        self._is_known = True
        if needed is not None and needed != self._needed:
            hint = "" if self._is_automatic else f"; run `zsnapdb backup {self._instance.name}`"
            self._instance.events.warn(
                f"nothing that the server writes now can be restored before the next backup: {needed.reason}{hint}"
            )
        self._needed = needed

    def _look_at_gtids(self) -> None:
        repetitions = repeated(BinlogArchive(self._instance.open_repository(), self._instance.name).load())
        for part in repetitions:
            if part not in self._repeated:
                self._instance.events.warn(f"{part.text}; {part.hint}")
        self._repeated = repetitions

    def _wait_for(self, running: RunningBackup) -> None:
        code = running.poll()
        if code is None:
            return
        self._running = None
        self._again_at = self._clock() + _AGAIN
        if code:
            self._instance.events.warn(f"the backup of the new history ended with {code}; trying again later")
        self._look()


def needed_backup(instance: Instance) -> RouteEnd | None:
    """Return why the newest archived state cannot be restored before the next backup; None if it can."""
    return read(instance, instance.open_repository()).window.unprotected
