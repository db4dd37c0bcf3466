"""Decides whether an interrupted backup is continued or abandoned, with the reason. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from zsnapdb.base.domain_types import backup_time


class ResumeDecision(StrEnum):
    """The action of the next run for an interrupted backup."""

    FINISH = "finish"
    CONTINUE = "continue"
    GIVE_UP = "give-up"
    LEAVE = "leave"


class Cause(StrEnum):
    """The kind of reason for the decision about an interrupted backup."""

    STORED = "stored"
    UNFINISHED = "unfinished"
    STORED_OTHERWISE = "stored-otherwise"
    REQUESTED = "requested"
    TOO_OLD = "too-old"
    SNAPSHOT_GONE = "snapshot-gone"
    BASE_GONE = "base-gone"
    BASE_NOT_STORED = "base-not-stored"
    BASE_DAMAGED = "base-damaged"
    OTHER_REPOSITORY = "other-repository"
    OTHER_RECIPIENTS = "other-recipients"
    OTHER_FLAGS = "other-flags"
    UNREADABLE = "unreadable"
    FAILED = "failed"


@dataclass(frozen=True)
class Interrupted:
    """The properties of an interrupted backup that decide whether it can be continued."""

    backup_id: str
    repository_id: str
    recipients: tuple[str, ...]
    send_flags: Collection[tuple[str, ...]]
    base: str | None
    snapshots: frozenset[tuple[str, int]]
    """The dataset and GUID of each snapshot that the backup sends."""
    bases: frozenset[tuple[str, int]]
    """The dataset and GUID of each snapshot or bookmark from which the increments start."""


@dataclass(frozen=True)
class Surroundings:
    """The current state of the host and the repository.

    `sources` contains the existing snapshots, and `origins` the existing snapshots and bookmarks, each as dataset and
    GUID. `kept` contains the snapshots in the stored manifest; it is None if there is no manifest. `send_flags`
    contains the `zfs send` flags that a backup may use.
    """

    time: datetime
    repository_id: str
    recipients: tuple[str, ...]
    send_flags: Collection[tuple[str, ...]]
    stored: Collection[str]
    sources: Collection[tuple[str, int]]
    origins: Collection[tuple[str, int]]
    kept: frozenset[tuple[str, int]] | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)
    """For each backup with a damaged chain in the repository, the finding about the damage."""


@dataclass(frozen=True)
class ResumeJudgement:
    """The decision about an interrupted backup, its cause, and a text for the user."""

    decision: ResumeDecision
    because: Cause
    text: str


def judge(started: Interrupted, around: Surroundings, *, within: float | None, fresh: bool = False) -> ResumeJudgement:
    """Decide whether an interrupted backup is continued.

    `within` is the maximum age of the backup in seconds, or None for no limit. If `fresh` is set, the backup is
    abandoned.
    """

    def give_up(because: Cause, text: str) -> ResumeJudgement:
        return ResumeJudgement(ResumeDecision.GIVE_UP, because, text)

    if started.backup_id in around.stored:
        if around.kept == started.snapshots:
            return ResumeJudgement(ResumeDecision.FINISH, Cause.STORED, "its manifest is in the repository")
        text = "the repository has another backup of this id, which this host did not store; remove its manifest there"
        return ResumeJudgement(ResumeDecision.LEAVE, Cause.STORED_OTHERWISE, text)
    if fresh:
        return give_up(Cause.REQUESTED, "it was requested")
    # If the clock was set back, the age is negative and the backup counts as new. If the clock was set forward, the
    # backup may seem too old. In that case its uploaded chunks are lost.
    age = (around.time - backup_time(started.backup_id)).total_seconds()
    if within is not None and age > within:
        return give_up(
            Cause.TOO_OLD, f"it was started {age / 3600:.1f} hours ago, and resume_within is {within / 3600:.1f} hours"
        )
    if started.repository_id != around.repository_id:
        return give_up(
            Cause.OTHER_REPOSITORY,
            f"it was started in repository {started.repository_id}, and this is repository {around.repository_id}",
        )
    if started.recipients != around.recipients:
        return give_up(
            Cause.OTHER_RECIPIENTS, "the recipients were changed: a recipient could read only a part of the backup"
        )
    if any(flags not in around.send_flags for flags in started.send_flags):
        return give_up(Cause.OTHER_FLAGS, "the send flags were changed, and they must not change within a backup")
    gone = sorted(dataset for dataset, guid in started.snapshots if (dataset, guid) not in around.sources)
    if gone:
        return give_up(Cause.SNAPSHOT_GONE, f"its snapshot of {', '.join(gone)} is gone")
    gone = sorted(dataset for dataset, guid in started.bases if (dataset, guid) not in around.origins)
    if gone:
        return give_up(Cause.BASE_GONE, f"the snapshot that it is an increment of is gone from {', '.join(gone)}")
    if started.base is not None and started.base not in around.stored:
        return give_up(
            Cause.BASE_NOT_STORED, f"it is an increment of {started.base}, which the repository no longer holds"
        )
    if started.base is not None and started.base in around.damaged:
        return give_up(Cause.BASE_DAMAGED, f"it is an increment of {started.base}: {around.damaged[started.base]}")
    return ResumeJudgement(ResumeDecision.CONTINUE, Cause.UNFINISHED, "its snapshots are still here")
