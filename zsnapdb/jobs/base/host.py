"""The interface of jobs to a host. Tests can run the same jobs on a simulated host."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pydantic import SecretStr

from zsnapdb.base import patterns, run_context
from zsnapdb.base.domain_types import new_backup_id

if TYPE_CHECKING:
    from zsnapdb.config.repository import RepositorySettings
    from zsnapdb.planning.clock_guard import ClockReading
    from zsnapdb.repository.backup_journal import JournalDisk
    from zsnapdb.repository.evidence_log import AuthorPart
    from zsnapdb.repository.writer_lease import Holder
    from zsnapdb.store.base import Store


def system_now() -> datetime:
    """Return the current time in UTC. Jobs read no other wall clock."""
    return datetime.now(UTC)


def system_steady() -> tuple[str, float] | None:
    """Return the boot id and the seconds of the steady clock; None if the kernel does not provide them.

    The steady clock keeps running while the host is suspended, and it cannot be set (clock_gettime(2), CLOCK_BOOTTIME).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:
        return None


def backup_id_at(moment: datetime) -> str:
    """Return a new id for a backup at this time."""
    return new_backup_id(moment, secrets.randbits(16))


OpenStore: TypeAlias = "Callable[[RepositorySettings, Callable[[str], None] | None], tuple[Store, str]]"
"""Function that opens the store of a repository, and returns the store and the key prefix.

The callback receives messages about retries.
"""


def _open_store(settings: RepositorySettings, tell: Callable[[str], None] | None) -> tuple[Store, str]:
    # Import late: most commands open no store, and the import would take longer than the command itself.
    from zsnapdb.store.layers import open_store

    return open_store(settings, tell)


def _who() -> AuthorPart:
    """Return the accounts of this process, from the kernel (proc(5), loginuid), sudo(8) and the service."""
    from zsnapdb.repository.evidence_log import AuthorPart

    return AuthorPart(
        account=_account(os.geteuid()),
        login=_login(),
        sudo=os.environ.get("SUDO_USER", ""),
        subject=patterns.current_subject(),
        issuer=patterns.current_issuer(),
        host=socket.gethostname(),
    )


def _login() -> str:
    with contextlib.suppress(OSError, ValueError):
        uid = int(Path("/proc/self/loginuid").read_text())
        # 4294967295 means that the process belongs to no login, for example a service.
        return _account(uid) if uid != 2**32 - 1 else ""
    return ""


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _has_ended(holder: Holder) -> bool:
    from zsnapdb.repository.writer_lease import has_ended

    return has_ended(holder)


@dataclass(frozen=True)
class Host:
    """This host as the jobs see it: the folders that they share, the clocks, and the access to stores."""

    run: Path = Path("/run/zsnapdb")
    """Folder with locks and marks. A reboot clears it."""

    cache: Path = Path("/var/cache/zsnapdb")
    """Copies of the repository's content. The folder may be removed at any time."""

    journals: Path = Path("/var/lib/zsnapdb/journal")
    """Journals of interrupted backups for the next run, a folder per instance."""

    records: Path = Path("/var/lib/zsnapdb/stored")
    """Records of the objects that this host stored, a folder per instance and repository (`record/`)."""

    @property
    def local_sets(self) -> Path:
        """Records of the snapshot sets that are in no repository, in one folder per instance."""
        return self.records.with_name("local")

    @property
    def bases(self) -> Path:
        """Records of the base snapshots that running backups hold and that belong to no snapshot set.

        The folder contains one file per instance (`send.py`).
        """
        return self.records.with_name("bases")

    @property
    def tails(self) -> Path:
        """Records of how far each instance's newest binlog was read.

        There is one file per instance (`binlog_tail_record.py`).
        """
        return self.records.with_name("tails")

    @property
    def readers(self) -> Path:
        """Records of replicas to rebuild after a restore of their source.

        There is one file per instance (`affected_replicas.py`).
        """
        return self.records.with_name("readers")

    @property
    def put_backs(self) -> Path:
        """Records of the restores that replaced production, in one file per instance (`production_restores.py`)."""
        return self.records.with_name("put-back")

    @property
    def services(self) -> Path:
        """Records of the systemd units of servers, in one file per instance (`server_unit_record.py`)."""
        return self.records.with_name("services")

    @property
    def serve(self) -> Path:
        """State of the helper of `zsnapdb serve`: tokens as hashes, and operations."""
        return self.records.with_name("serve")

    @property
    def policies(self) -> Path:
        """The policies that this host recorded in the evidence of repositories, in one folder per instance."""
        return self.records.with_name("policies")

    @property
    def runs(self) -> Path:
        """The results of runs whose id the caller chose, in one file per run (`idempotency_records.py`)."""
        return self.records.with_name("runs")

    @property
    def clocks(self) -> Path:
        """The last recorded readings of this host's clocks (`clock_record.py`)."""
        return self.records.with_name("clocks")

    now: Callable[[], datetime] = system_now
    """The time in UTC."""

    steady: Callable[[], tuple[str, float] | None] | None = None
    """Function that returns the boot id and the seconds of a clock that cannot be set.

    If this is None and `now` is the wall clock, the steady clock of the kernel is used.
    """

    def reading(self) -> ClockReading | None:
        """Return the current readings of the wall clock and the steady clock; None if there is no steady clock."""
        from zsnapdb.planning.clock_guard import ClockReading

        steady = self.steady or (system_steady if self.now is system_now else None)
        said = steady() if steady is not None else None
        return ClockReading(self.now(), *said) if said is not None else None

    id_at: Callable[[datetime], str] = backup_id_at
    """Function that returns a new id for an object that starts at that time."""

    def latest(self) -> datetime:
        """Return the wall-clock time or the proven time, whichever is later (`planning/clock_guard.py`).

        zsnapdb records this time when it creates or uses an object that can expire. So even if the wall clock is behind
        at that moment, the object does not expire too early.
        """
        from zsnapdb.jobs.base.clock_record import removal_time

        return removal_time(self).latest

    def new_backup_id(self) -> str:
        """Return an id for a backup, or another object, that starts now."""
        return self.id_at(self.latest())

    run_id: Callable[[], str] = run_context.run_id
    """Function that returns the id of the run to which this job belongs."""

    who: Callable[[], AuthorPart] = _who
    """The user of the job: the accounts of this process, or the user for whom a service runs it."""

    open_store: OpenStore = _open_store

    journal_disk: JournalDisk | None = None
    """The writer of the journals. If it is None, journals are written to the disk of this host."""

    has_ended: Callable[[Holder], bool] = _has_ended
    """Function that returns whether the holder of a lease has certainly ended."""


THIS_HOST = Host()


def fresh_server_id() -> int:
    """Return a random server_id from the upper half of its range, from which administrators rarely choose ids."""
    return 2**31 + secrets.randbelow(2**31 - 1)


def fresh_password() -> SecretStr:
    """Return a new password. The password satisfies the plugins validate_password and simple_password_check.

    A server on a copy enforces the password rules of its source, so the password contains several characters of each
    kind. MySQL accepts at most 32 characters for a replication source (refman 8.4, "CHANGE REPLICATION SOURCE TO").
    """
    return SecretStr(secrets.token_urlsafe(16) + "-._bB7cC8A")
