"""The facts from which the health of an instance in one repository is judged. Pure.

All of them come from the content of the repository and the record of the host, none from a running program. So they say
the same if nothing has run for a month, and on another host that only reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True)
class DrillFact:
    """The evidence of a drill: its end (UTC), and whether it passed."""

    drill_id: str
    backup_id: str
    finished: datetime
    passed: bool


@dataclass(frozen=True)
class CheckFact:
    """The backup whose last check is the oldest of all restorable backups.

    `since` is the time of that check, or of the backup if it was never checked (`was_checked` is False).
    """

    backup_id: str
    since: datetime
    was_checked: bool


@dataclass(frozen=True)
class CopyFact:
    """The newest restorable point in another repository. `problem` says why it is not known, "" if it is."""

    repository: str
    newest: datetime | None
    problem: str = ""


@dataclass(frozen=True)
class LockFact:
    """Until when the store keeps the objects of a backup and its chain from removal, by those that were looked at.

    `until` None: some object is not protected (`unprotected` names it), or, without such an object, every protection
    lasts until somebody lifts it.
    """

    backup_id: str
    made: datetime
    until: datetime | None
    unprotected: str = ""


class ExchangedServer(StrEnum):
    """The server that a restore replaces.

    RUNS: production goes on, also after it was put back. AWAY: it is down, and a command of zsnapdb is at work. LEFT:
    it is down, and no command is at work.
    """

    RUNS = "runs"
    AWAY = "away"
    LEFT = "left"


@dataclass(frozen=True)
class ExchangeFact:
    """A rewind or another restore that replaces the server and is under way on this host.

    `stopped` is since when (UTC) its server is down because a command of zsnapdb stopped it; None: it was not stopped,
    or a server runs again. `ways` are the two commands that end it: on, and back.
    """

    started: datetime
    stopped: datetime | None
    commands: tuple[str, str]
    server: ExchangedServer


@dataclass(frozen=True)
class StoppedServer:
    """A server that does not run on this host, although it ran at the last backup: its systemd unit.

    `has_failed`: it ended by itself or did not start, and nobody stopped it.
    """

    unit: str
    has_failed: bool


@dataclass(frozen=True)
class HealthFacts:
    """What is known of the protection of an instance in one repository at a time (UTC).

    `newest_point` and `window_start` are the newest restorable point and the begin of the time without a gap up to it;
    None if nothing can be restored. `no_copy` says why this host cannot restore the newest backup. `damage` are reasons
    that a person must look at, `doubts` those that may wait.
    `room` says why this host cannot keep its records. `exchanges` are what replaces the server of this host just now.
    `restore_seconds` is the expected duration of a restore of the newest point; None if no drill says.
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
    is_machine: bool = False
    """Whether the instance is a virtual machine. No binlog of a server inside is archived."""
