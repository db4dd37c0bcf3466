"""The facts for the health of an instance in one repository. Pure.

All facts about backups come from the content of the repository and from the host's record, never from a running
program. So they are correct even if no job has run for a month, or if this host only reads the repository.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from zsnapdb.planning.server_space import FullVolume


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


@dataclass(frozen=True)
class ExchangeFact:
    """An unfinished rewind or other restore that replaces the server on this host.

    A zsnapdb command stopped the server at the time `stopped` (UTC). It is None if no command stopped the server, or if
    the server is running again. The field `commands` contains the two commands that end the exchange: the first
    continues it, and the second reverts it.
    """

    started: datetime
    stopped: datetime | None
    commands: tuple[str, str]
    server: ExchangedServer


@dataclass(frozen=True)
class StoppedServer:
    """The systemd unit of a server that was running during the last backup, but is not running now on this host.

    The field `has_failed` is set if the server crashed or did not start, even if systemd will try to restart it. It is
    not set if the server was stopped on purpose, or if systemd is starting it (`is_starting`).
    """

    unit: str
    has_failed: bool
    is_starting: bool = False

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
        state = "failed" if self.has_failed else "is being started" if self.is_starting else "is stopped"
        return f"the server of {instance} {state}: {self.unit}"


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
