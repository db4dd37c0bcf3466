"""What an interrupted move of files may do next: copy, start the server on the copies, end, or refuse. Pure.

A server that was started on the copies may have acknowledged a write there: from then on the copies are the truth. That
cannot be told from files alone. So the old files count again only if it is proved that the copies never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.planning.setup.move import ServerMove


class MovePhase(StrEnum):
    """What a move has certainly reached, as its record says. UNKNOWN: the record is of a release that wrote no phases.

    PLANNED: nothing, or a part of the copies. COPIED: the copies were equal to the old files, and have a snapshot.
    SWITCHED: the copies were about to take the place of the old files. STARTED: the server was seen to run on them.
    """

    UNKNOWN = "unknown"
    PLANNED = "planned"
    COPIED = "copied"
    SWITCHED = "switched"
    STARTED = "started"


class ServedPlace(StrEnum):
    """Where the server runs, as the kernel says."""

    NOWHERE = "nowhere"
    OLD = "old"
    NEW = "new"
    OTHER = "other"


class CopiesState(StrEnum):
    """What is in the datasets. UNFINISHED: what this move copied, without an end. UNPROVED: nobody knows whose it is.

    UNCHANGED: the copies, as they were compared. CHANGED: they were changed since. UNMOUNTED: nobody can see it.
    """

    EMPTY = "empty"
    UNFINISHED = "unfinished"
    UNCHANGED = "unchanged"
    CHANGED = "changed"
    UNPROVED = "unproved"
    UNMOUNTED = "unmounted"


class OldState(StrEnum):
    """Whether the old files are as they were when their copies were compared. UNPROVED: nothing says how they were."""

    SAME = "same"
    CHANGED = "changed"
    GONE = "gone"
    UNPROVED = "unproved"


class MoveStep(StrEnum):
    """COPY: stop the server, copy, switch, start. START: start it on the copies. FINISH: it runs there already."""

    COPY = "copy"
    START = "start"
    FINISH = "finish"


@dataclass(frozen=True)
class MoveFacts:
    """What was found of a move. `where`: the process of the server and its data directory, for people ("" if none).

    `is_switched`: the old files have their other name, or the option file names the copies. `in_the_way`: a path with
    files of others where the copies are to be mounted, "" if there is none.
    """

    phase: MovePhase
    is_switched: bool
    runs: ServedPlace
    copies: CopiesState
    old: OldState
    where: str = ""
    in_the_way: str = ""


@dataclass(frozen=True)
class MoveDecision:
    """The next step, or None and why there is none, with a hint."""

    step: MoveStep | None
    why: str = ""
    hint: str = ""


_NEVER_COPIED = "its copies never took the place of the old files"
_MAY_BE_NEWER = {
    CopiesState.CHANGED: "they were changed after they were copied: they may be newer than the old files",
    CopiesState.UNPROVED: "nothing proves that they are older than the old files",
}


def decide(move: ServerMove, facts: MoveFacts) -> MoveDecision:
    """Return the next step of a move that was interrupted. A server that runs on the copies is never stopped."""
    if facts.runs is ServedPlace.NEW:
        return MoveDecision(MoveStep.FINISH)
    if facts.runs is ServedPlace.OTHER:
        return MoveDecision(
            None,
            f"the server of {move.files.service} runs neither on its old files nor on their copies: {facts.where}",
            f"it was not stopped; if it runs where you want it, {move.forgotten}",
        )
    if facts.is_switched and facts.runs is ServedPlace.NOWHERE:
        return _starting(move, facts)
    return _copying(move, facts)


def _starting(move: ServerMove, facts: MoveFacts) -> MoveDecision:
    if facts.phase in (MovePhase.PLANNED, MovePhase.COPIED):
        return MoveDecision(
            None,
            f"{move.places.old if move.is_renaming else move.fragment} is there, and this move did not put it there:"
            f" {_NEVER_COPIED}",
            f"look what it is; to give the move up: {move.given_up(is_switched=False)}",
        )
    if facts.in_the_way:
        return MoveDecision(
            None,
            f"{facts.in_the_way} has files, and the copies are to be mounted there",
            f"see who made them, move them away, run the same setup again; else: {move.given_up(is_switched=True)}",
        )
    if facts.old is OldState.CHANGED and facts.phase is not MovePhase.STARTED:
        return MoveDecision(
            None,
            f"the files in {move.places.old} were changed after they were copied, and the copies are to be started",
            f"if the copies are right, start them: {move.started}, and run the same setup again; if the old files are:"
            f" {move.given_up(is_switched=True)}",
        )
    return MoveDecision(MoveStep.START)


def _copying(move: ServerMove, facts: MoveFacts) -> MoveDecision:
    give_up = move.given_up(is_switched=facts.is_switched)
    if facts.is_switched and facts.runs is ServedPlace.OLD and facts.copies in _MAY_BE_NEWER:
        # A later option file names the old data directory, and the one of the move names the logs.
        return MoveDecision(
            None,
            f"the server runs on {move.server.datadir} and may write its logs to {move.datasets[0].name}",
            f"it was not stopped: make a dump first. Then see which option files set datadir beside {move.fragment}",
        )
    if facts.phase is MovePhase.STARTED:
        return MoveDecision(
            None,
            f"the server ran on {move.datasets[0].name} before, and its old files are older: they are not copied there",
            f"to go on with the old files as they are: {give_up}",
        )
    if facts.old is OldState.GONE:
        return MoveDecision(
            None,
            f"the files of the server are not in {move.server.datadir}, and not in use anywhere",
            f"look for them; {move.datasets[1].name} may have a copy: `zfs mount {move.datasets[1].name}`",
        )
    if facts.copies is CopiesState.UNMOUNTED:
        names = [new.name for new in move.datasets]
        return MoveDecision(
            None,
            f"{' and '.join(names)} are not mounted below {move.places.staging}: what is in them cannot be seen",
            f"`{' && '.join(f'zfs mount {name}' for name in names)}`, then run the same setup again; else: {give_up}",
        )
    if facts.copies in _MAY_BE_NEWER:
        return MoveDecision(
            None,
            f"{move.datasets[0].name} and {move.datasets[1].name} have files, and {_MAY_BE_NEWER[facts.copies]}."
            " Nothing is copied over them",
            f"compare {move.server.datadir} with {move.places.staging}; to go on with the old files: {give_up}",
        )
    return MoveDecision(MoveStep.COPY)


def may_go_back(facts: MoveFacts) -> bool:
    """Whether the old files may take their place again: nothing runs on the copies, which never changed."""
    return (
        facts.runs is not ServedPlace.NEW
        and facts.phase is MovePhase.SWITCHED
        and facts.copies is CopiesState.UNCHANGED
        and facts.old is not OldState.GONE
    )
