"""What a job uses of the host it runs on, so that a test runs the same job on a host of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from zsnapdb.base import run_id, subject
from zsnapdb.jobs.base import clock

if TYPE_CHECKING:
    from zsnapdb.config.repository import RepositorySettings
    from zsnapdb.planning.clock_guard import ClockReading
    from zsnapdb.repository.backup_journal import JournalDisk
    from zsnapdb.repository.evidence_log import WhoPart
    from zsnapdb.repository.writer_lease import Holder
    from zsnapdb.store.base import Store

OpenStore: TypeAlias = "Callable[[RepositorySettings, Callable[[str], None] | None], tuple[Store, str]]"
"""Opens the store of a repository. Returns the store and the prefix of the keys; reports retries to the callback."""


def _open_store(settings: RepositorySettings, tell: Callable[[str], None] | None) -> tuple[Store, str]:
    # Most commands open no store, and to load what they would need for one takes longer than they do.
    from zsnapdb.store.open import open_store

    return open_store(settings, tell)


def _who() -> WhoPart:
    """Return who runs this process, as the kernel, sudo, and the service that runs it for somebody say.

    Source: proc(5), loginuid; sudo(8).
    """
    from zsnapdb.repository.evidence_log import WhoPart

    return WhoPart(
        account=_account(os.geteuid()),
        login=_login(),
        sudo=os.environ.get("SUDO_USER", ""),
        subject=subject.current_subject(),
        issuer=subject.current_issuer(),
        host=socket.gethostname(),
    )


def _login() -> str:
    with contextlib.suppress(OSError, ValueError):
        uid = int(Path("/proc/self/loginuid").read_text())
        # 4294967295 stands for a process that nobody logged in for, such as a service.
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
    """Where this host keeps what its jobs share, what time it is there, and how it opens a store."""

    run: Path = Path("/run/zsnapdb")
    """Locks and marks that a reboot clears."""

    cache: Path = Path("/var/cache/zsnapdb")
    """Holds nothing that the repositories do not hold; may be removed at any time."""

    journals: Path = Path("/var/lib/zsnapdb/journal")
    """What interrupted backups leave to the next run, a folder per instance."""

    records: Path = Path("/var/lib/zsnapdb/stored")
    """What this host stored in repositories, a folder per instance and repository (`host_record.py`)."""

    @property
    def local_sets(self) -> Path:
        """What this host knows about snapshot sets that are in no repository, a folder per instance."""
        return self.records.with_name("local")

    @property
    def bases(self) -> Path:
        """Which snapshots a running backup holds although nothing says that they are of a set (`held_bases.py`)."""
        return self.records.with_name("bases")

    @property
    def tails(self) -> Path:
        """How far this host has read the newest binlog of each instance, a file per instance (`tail_record.py`)."""
        return self.records.with_name("tails")

    @property
    def readers(self) -> Path:
        """Which replicas must be rebuilt because their source was put back, a file per instance (`readers.py`)."""
        return self.records.with_name("readers")

    @property
    def put_backs(self) -> Path:
        """Which restores took production's place, a file per instance (`put_back_record.py`)."""
        return self.records.with_name("put-back")

    @property
    def services(self) -> Path:
        """Which systemd unit ran the server at its last backup, a file per instance (`service_record.py`)."""
        return self.records.with_name("services")

    @property
    def serve(self) -> Path:
        """What the helper of `zsnapdb serve` keeps: tokens by their hashes, and operations."""
        return self.records.with_name("serve")

    @property
    def policies(self) -> Path:
        """Which policy this host recorded in the evidence logs of repositories, a folder per instance."""
        return self.records.with_name("policies")

    @property
    def runs(self) -> Path:
        """What runs did whose id the caller chose, a file per run (`once_record.py`)."""
        return self.records.with_name("runs")

    @property
    def clocks(self) -> Path:
        """What the clocks of this host said when a command last looked (`removal_time.py`)."""
        return self.records.with_name("clocks")

    now: Callable[[], datetime] = clock.now
    """The time, UTC."""

    steady: Callable[[], tuple[str, float] | None] | None = None
    """The boot and the seconds of the clock that nobody can set; None: that of the kernel, beside its wall clock."""

    def reading(self) -> ClockReading | None:
        """Return what both clocks say now; None if the wall clock has no steady one beside it."""
        from zsnapdb.planning.clock_guard import ClockReading

        steady = self.steady or (clock.steady if self.now is clock.now else None)
        said = steady() if steady is not None else None
        return ClockReading(self.now(), *said) if said is not None else None

    id_at: Callable[[datetime], str] = clock.backup_id_at
    """An id for what begins at that time."""

    def latest(self) -> datetime:
        """Return the later one of the wall clock and the proven time.

        What begins, or is used, is recorded with it: so nothing that was made while the clock was behind ends early.
        """
        from zsnapdb.jobs.base.removal_time import removal_time

        return removal_time(self).latest

    def new_backup_id(self) -> str:
        """Return an id for a backup, or another thing, that begins now."""
        return self.id_at(self.latest())

    run_id: Callable[[], str] = run_id.current
    """The id of the run of which this job is a part."""

    who: Callable[[], WhoPart] = _who
    """On whose behalf the job runs: the accounts of this process, unless a service runs it for somebody else."""

    open_store: OpenStore = _open_store

    journal_disk: JournalDisk | None = None
    """What changes the journals; None: the disk of this host."""

    has_ended: Callable[[Holder], bool] = _has_ended
    """Whether the process that has a lease is known to be gone."""


THIS_HOST = Host()
