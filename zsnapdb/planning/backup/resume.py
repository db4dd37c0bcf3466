"""What becomes of a backup that was interrupted: it is continued, or given up, with the reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from zsnapdb.model import backup_time


class ResumeDecision(StrEnum):
    """What the next run does with it."""

    FINISH = "finish"
    CONTINUE = "continue"
    GIVE_UP = "give-up"
    LEAVE = "leave"


class Because(StrEnum):
    """Why."""

    STORED = "stored"
    UNFINISHED = "unfinished"
    STORED_OTHERWISE = "stored-otherwise"
    ASKED = "asked"
    TOO_OLD = "too-old"
    SNAPSHOT_GONE = "snapshot-gone"
    BASE_GONE = "base-gone"
    BASE_NOT_STORED = "base-not-stored"
    OTHER_REPOSITORY = "other-repository"
    OTHER_RECIPIENTS = "other-recipients"
    OTHER_FLAGS = "other-flags"
    UNREADABLE = "unreadable"
    FAILED = "failed"


@dataclass(frozen=True)
class Interrupted:
    """What an interrupted backup needs in order to go on."""

    backup_id: str
    repository_id: str
    recipients: tuple[str, ...]
    send_flags: Collection[tuple[str, ...]]
    base: str | None
    snapshots: frozenset[tuple[str, int]]
    """Dataset and GUID of each snapshot it sends."""
    bases: frozenset[tuple[str, int]]
    """Dataset and GUID of each snapshot (or its bookmark) it sends from."""


@dataclass(frozen=True)
class Surroundings:
    """What there is now.

    `sources` are snapshots, `origins` snapshots and bookmarks, each by dataset and GUID; `kept` is the stored
    manifest's snapshots.
    """

    time: datetime
    repository_id: str
    recipients: tuple[str, ...]
    send_flags: tuple[str, ...]
    stored: Collection[str]
    sources: Collection[tuple[str, int]]
    origins: Collection[tuple[str, int]]
    kept: frozenset[tuple[str, int]] | None = None


@dataclass(frozen=True)
class Judgement:
    """A fate, why, and in words."""

    fate: ResumeDecision
    because: Because
    text: str


def judge(begun: Interrupted, around: Surroundings, *, within: float | None, fresh: bool = False) -> Judgement:
    """Return what becomes of an interrupted backup.

    `within` is how old it may be, in seconds (None: as old as it likes); `fresh` asks to give it up.
    """

    def give_up(because: Because, text: str) -> Judgement:
        return Judgement(ResumeDecision.GIVE_UP, because, text)

    if begun.backup_id in around.stored:
        if around.kept == begun.snapshots:
            return Judgement(ResumeDecision.FINISH, Because.STORED, "its manifest is in the repository")
        return give_up(Because.STORED_OTHERWISE, "the repository has another backup of this id")
    if fresh:
        return give_up(Because.ASKED, "it was asked for")
    # A clock that was set back makes ages negative: it is young then, and one that was set forward costs what was
    # uploaded.
    age = (around.time - backup_time(begun.backup_id)).total_seconds()
    if within is not None and age > within:
        return give_up(
            Because.TOO_OLD, f"it was begun {age / 3600:.1f} hours ago, resume_within is {within / 3600:.1f} hours"
        )
    if begun.repository_id != around.repository_id:
        return give_up(
            Because.OTHER_REPOSITORY,
            f"it was begun in repository {begun.repository_id}, this is {around.repository_id}",
        )
    if begun.recipients != around.recipients:
        return give_up(
            Because.OTHER_RECIPIENTS, "the recipients were changed: one of them could read only a part of it"
        )
    if any(flags != around.send_flags for flags in begun.send_flags):
        return give_up(Because.OTHER_FLAGS, "the send flags were changed, and must not change within a backup")
    gone = sorted(dataset for dataset, guid in begun.snapshots if (dataset, guid) not in around.sources)
    if gone:
        return give_up(Because.SNAPSHOT_GONE, f"its snapshot of {', '.join(gone)} is gone")
    gone = sorted(dataset for dataset, guid in begun.bases if (dataset, guid) not in around.origins)
    if gone:
        return give_up(Because.BASE_GONE, f"what it is an increment of is gone from {', '.join(gone)}")
    if begun.base is not None and begun.base not in around.stored:
        return give_up(
            Because.BASE_NOT_STORED, f"it is an increment of {begun.base}, which the repository no longer holds"
        )
    return Judgement(ResumeDecision.CONTINUE, Because.UNFINISHED, "its snapshots are still here")
