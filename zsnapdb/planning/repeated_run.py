"""What becomes of a command whose run has an id that its caller chose (`--once RUN`), by what is recorded of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

KEPT_DAYS = 30
"""For how many days it is recorded what a run did. An older id answers nothing, so it is refused."""
_DAY = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T")


class RunState(StrEnum):
    """How far a run is. begun: it is at work, was killed, or failed. given-up: what it made was removed on request."""

    BEGUN = "begun"
    DONE = "done"
    GIVEN_UP = "given-up"


class RunVerdict(StrEnum):
    """What to do: begin, answer as the run did, go on with what it left, say that it is gone, or refuse."""

    BEGIN = "begin"
    ANSWER = "answer"
    GO_ON = "go-on"
    GONE = "gone"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Deed:
    """What a command is to do: its verb, what it is about (an instance, a clone), and which things of that name.

    `aim` are the GUIDs of the datasets that have the name now; empty: the name alone counts. A name can be given again.
    """

    verb: str
    about: str
    aim: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunDecision:
    """A verdict, with its reason and, if it is refused, what to do."""

    verdict: RunVerdict
    reason: str
    hint: str = ""


def decide(run: str, deed: Deed, known: Deed | None, state: RunState, now: datetime) -> RunDecision:
    """Return what becomes of the deed of this run. `known` is the recorded deed (None: nothing is recorded)."""
    another = "choose another id for another command"
    if known is None:
        if is_too_old(run, now):
            reason = f"run {run} is older than {KEPT_DAYS} days: what it did is recorded no more"
            return RunDecision(RunVerdict.REFUSE, reason, "see what is there; then choose a new id")
        return RunDecision(RunVerdict.BEGIN, f"nothing is known of run {run}")
    if (known.verb, known.about) != (deed.verb, deed.about):
        reason = f"run {run} was `{known.verb}` of {known.about}, not `{deed.verb}` of {deed.about}"
        return RunDecision(RunVerdict.REFUSE, reason, another)
    if state is RunState.DONE:
        return RunDecision(RunVerdict.ANSWER, f"run {run} is done")
    if state is RunState.GIVEN_UP:
        return RunDecision(RunVerdict.REFUSE, f"what run {run} began was given up", "choose a new id to begin again")
    if set(known.aim) & set(deed.aim) or known.aim == deed.aim:
        return RunDecision(RunVerdict.GO_ON, f"run {run} began, and did not end")
    return RunDecision(
        RunVerdict.GONE, f"what run {run} was about is gone: {deed.about} is nothing, or another one, now", another
    )


def is_too_old(run: str, now: datetime) -> bool:
    """Whether the time in the id of the run is so long ago that what it did is recorded no more."""
    return day_of(run) < (now - timedelta(days=KEPT_DAYS)).astimezone(UTC).strftime("%Y%m%d")


def day_of(run: str) -> str:
    """Return the day (UTC) in the id of a run: 8 digits, which need not be a date."""
    match = _DAY.match(run)
    assert match, run
    return "".join(match.groups())
