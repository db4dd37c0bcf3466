"""The facts for the health of an instance in one repository. Pure.

All facts about backups come from the content of the repository and from the host's record, never from a running
program. So they are correct even if no job has run for a month, or if this host only reads the repository.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from zsnapdb.base.domain_types import pool_of
from zsnapdb.planning.server_space import FullVolume
from zsnapdb.planning.start_options import OPTIONS_HINT, describe_refused


@dataclass(frozen=True)
class DrillFact:
    """The evidence of a drill: the time when it ended (UTC), and whether it passed."""

    drill_id: str
    backup_id: str
    finished: datetime
    passed: bool


@dataclass(frozen=True)
class CheckFact:
    """The restorable backup that has not been checked for the longest time.

    The time of its last check is `since`. If the backup was never checked (`was_checked` is False), `since` is the time
    of the backup.
    """

    backup_id: str
    since: datetime
    was_checked: bool


@dataclass(frozen=True)
class CopyFact:
    """The newest restorable point in another repository. If it is unknown, `problem` contains the reason."""

    repository: str
    newest: datetime | None
    problem: str = ""


@dataclass(frozen=True)
class LockFact:
    """The time until which the store's locks protect a backup and its chain, as a sample of their objects shows.

    The time `until` is None in two cases: an object is unprotected (`unprotected` is its name), or legal holds without
    an end protect all objects.
    """

    backup_id: str
    made: datetime
    until: datetime | None
    unprotected: str = ""


class ExchangedServer(StrEnum):
    """The state of the server that a restore replaces.

    - RUNS: production is running, possibly because the former server was put back
    - AWAY: production is down, and a zsnapdb command is running
    - LEFT: production is down, and no command is running
    """

    RUNS = "runs"
    AWAY = "away"
    LEFT = "left"


def ways_hint(onward: str | None, back: str | None) -> str:
    """Return a hint with the commands that continue an interrupted restore, and that give it up, if they can work."""
    if back is None:
        return f"correct the cause of the error first, then `{onward}` continues it"
    gives_up = f"`{back}` gives it up"
    return f"`{onward}` continues it, {gives_up}" if onward is not None else gives_up


@dataclass(frozen=True)
class ExchangeFact:
    """An unfinished rewind or other restore that replaces the server on this host.

    A zsnapdb command stopped the server at the time `stopped` (UTC). It is None if no command stopped the server, or if
    the server is running again. The command `onward` continues the exchange, and `back` reverts it. Each is None if it
    would be refused: for example, a completed exchange cannot be reverted.
    """

    started: datetime
    stopped: datetime | None
    onward: str | None
    back: str | None
    server: ExchangedServer

    def hint(self) -> str:
        return ways_hint(self.onward, self.back)


class MissingReason(StrEnum):
    """The reason why a dataset of a server is not mounted."""

    POOL = "its pool is not imported"
    ABSENT = "it does not exist"
    KEY = "its key is not loaded"
    UNMOUNTED = "it is not mounted"


@dataclass(frozen=True)
class MissingVolume:
    """A dataset of a server that is not mounted on this host."""

    dataset: str
    reason: MissingReason

    def describe(self) -> str:
        return f"the server's files are on {self.dataset}, but {self.reason.value}"

    def hint(self, instance: str, start: str) -> str:
        """Return the commands that make the files available, followed by `start`, the start of the server."""
        available = {
            MissingReason.POOL: f"`zpool import {pool_of(self.dataset)}` (`zpool import` lists the pools)",
            MissingReason.ABSENT: f"find its new name with `zfs list -r {pool_of(self.dataset)}`, and mount it",
            MissingReason.KEY: f"`zfs load-key {self.dataset}; zfs mount {self.dataset}`",
            MissingReason.UNMOUNTED: f"`zfs mount {self.dataset}`",
        }[self.reason]
        is_lost = self.reason in (MissingReason.POOL, MissingReason.ABSENT)
        return f"{available}, then {start}{f'; {lost_hint(instance)}' if is_lost else ''}"


def lost_hint(instance: str) -> str:
    """Return a hint for an instance whose datasets may be destroyed."""
    return (
        f"if it is lost, `zsnapdb restore {instance} --handover promote --plan` shows its restore from the repository,"
        " and `zsnapdb example disaster-recovery.md` all steps"
    )


@dataclass(frozen=True)
class StoppedServer:
    """The systemd unit of a server that was running during the last backup, but is not running now on this host.

    The field `has_failed` is set if the server crashed or did not start, even if systemd will try to restart it. It is
    not set if the server was stopped on purpose, or if systemd is starting it (`is_starting`). The field `missing` is
    a dataset of the server that is not mounted, and `refused` contains the errors of the server program about its
    options.
    """

    unit: str
    has_failed: bool
    is_starting: bool = False
    missing: MissingVolume | None = None
    refused: tuple[str, ...] = ()

    @classmethod
    def from_states(cls, unit: str, shown: Collection[str]) -> StoppedServer | None:
        """Return the server if the LoadState, ActiveState and SubState of its unit show that it is down; else None.

        Between two start attempts, systemd shows a unit as activating, with the substate auto-restart
        (systemd.service(5), RestartSec=).
        """
        is_starting = "ActiveState=activating" in shown
        has_failed = "ActiveState=failed" in shown or any(one.startswith("SubState=auto-restart") for one in shown)
        if "LoadState=loaded" not in shown or not (is_starting or has_failed or "ActiveState=inactive" in shown):
            return None
        return cls(unit, has_failed, is_starting and not has_failed)

    def describe(self, instance: str) -> str:
        """Return a text with the state of the server and, if it is known, the cause."""
        state = "failed" if self.has_failed else "is being started" if self.is_starting else "is stopped"
        text = f"the server of {instance} {state}: {self.unit}"
        if self.missing is not None:
            return f"{text}; {self.missing.describe()}"
        return f"{text}; {describe_refused(self.refused)}" if self.refused else text

    def hint(self, instance: str) -> str:
        """Return a hint that begins with the cause, because a rewind replaces the data and not a wrong option."""
        start = f"`systemctl start {self.unit}`"
        if self.missing is not None:
            return self.missing.hint(instance, start)
        if self.refused:
            return f"{OPTIONS_HINT}; then {start}"
        log = f"`journalctl -u {self.unit} -n 50`"
        if self.is_starting:
            return f"wait; {log} shows why it takes so long"
        if not self.has_failed:
            return f"{start}; if it does not start, {log} shows the cause"
        return (
            f"{log} shows the cause: correct it, then {start}. Only if the log says that data files are damaged,"
            f" `zsnapdb rewind {instance} --to latest --plan` shows the way back"
        )


@dataclass(frozen=True)
class HealthFacts:
    """The facts about how well one repository protects an instance, at the time `at` (UTC).

    - `newest_point`: the newest restorable point; None if nothing can be restored
    - `window_start`: the start of the gapless range up to that point; None if nothing can be restored
    - `no_copy`: the reason why this host cannot restore the newest backup
    - `damage`, `doubts`: the problems that a person must solve now, and the problems that can wait
    - `room`: the reasons why this host cannot write its own records, such as a full disk
    - `restore_seconds`: the expected duration of a restore of the newest point; None without a suitable drill
    - `exchanges`: the unfinished replacements of this host's server
    - `full`: a volume of this host's server that has too little free space to start the server, if any
    """

    instance: str
    repository: str
    at: datetime
    newest_point: datetime | None
    window_start: datetime | None
    newest_backup: datetime | None
    archived_until: datetime | None
    unprotected: str = ""
    no_copy: str = ""
    damage: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    room: tuple[str, ...] = ()
    newest_drill: DrillFact | None = None
    newest_passed_drill: DrillFact | None = None
    listed: CheckFact | None = None
    read: CheckFact | None = None
    copies: tuple[CopyFact, ...] = ()
    lock: LockFact | None = None
    restore_seconds: float | None = None
    exchanges: tuple[ExchangeFact, ...] = ()
    stopped: StoppedServer | None = None
    full: FullVolume | None = None
    lacks_agent: bool = False
    """Whether the instance's jobs are scheduled for the agent of this host, and no agent runs."""
    is_machine: bool = False
    """Whether the instance is a virtual machine. The binlogs of a server inside the machine are not archived."""
