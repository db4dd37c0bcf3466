"""Decides the effect of a command with `--once RUN`, based on the record of the run RUN."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

KEPT_DAYS = 30
"""Days for which the actions of a run are recorded. An older id is refused, because the result of its run is no longer
recorded.
"""
_DAY = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T")


class RunState(StrEnum):
    """The state of a run.

    A run is `begun` if it is active, was killed or failed. A run is `given-up` if its results were removed.
    """

    BEGUN = "begun"
    DONE = "done"
    GIVEN_UP = "given-up"


class RunVerdict(StrEnum):
    """The decision: start, repeat the recorded answer, continue, report that the object no longer exists, or refuse."""

    BEGIN = "begin"
    ANSWER = "answer"
    GO_ON = "go-on"
    GONE = "gone"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Action:
    """The action of a command: its verb, its object (an instance or a clone), and the identity of that object.

    The field `aim` contains the GUIDs of the datasets that have the object's name now. They are compared because a name
    can be reused. If the field is empty, only the name of the object is compared.
    """

    verb: str
    about: str
    aim: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunDecision:
    """A verdict with its reason and, for a refusal, a hint."""

    verdict: RunVerdict
    reason: str
    hint: str = ""


def decide(
    run: str, action: Action, known: Action | None, state: RunState, now: datetime, *, is_sure: bool = False
) -> RunDecision:
    """Return the verdict on the command of this run. `known` is the action that the run's record contains, if any.

    If `is_sure` is True, a later time than `now` is wrong.
    """
    another = "choose another id for another command"
    if known is None:
        if is_too_old(run, now):
            reason = f"run {run} is older than {KEPT_DAYS} days: its result is no longer recorded"
            return RunDecision(RunVerdict.REFUSE, reason, "check the result on this host, then choose a new id")
        if is_sure and is_ahead(run, now):
            reason = f"run {run} has a date in the future: its result may no longer be recorded"
            return RunDecision(RunVerdict.REFUSE, reason, "check `date -u` and the result, then choose a new id")
        return RunDecision(RunVerdict.BEGIN, f"nothing is known of run {run}")
    if (known.verb, known.about) != (action.verb, action.about):
        reason = f"run {run} was `{known.verb}` of {known.about}, not `{action.verb}` of {action.about}"
        return RunDecision(RunVerdict.REFUSE, reason, another)
    if state is RunState.DONE:
        return RunDecision(RunVerdict.ANSWER, f"run {run} is done")
    if state is RunState.GIVEN_UP:
        return RunDecision(RunVerdict.REFUSE, f"run {run} was given up", "choose a new id to begin again")
    if set(known.aim) & set(action.aim) or known.aim == action.aim:
        return RunDecision(RunVerdict.GO_ON, f"run {run} began, and did not end")
    return RunDecision(
        RunVerdict.GONE,
        f"the object of run {run} no longer exists: {action.about} is missing, or is another object now",
        another,
    )


def is_ahead(run: str, now: datetime) -> bool:
    """Return whether the day in the run id is later than tomorrow, so that the age of the run is unknown."""
    return day_of(run) > (now + timedelta(days=1)).astimezone(UTC).strftime("%Y%m%d")


def is_too_old(run: str, now: datetime) -> bool:
    """Return whether the run id is so old that zsnapdb has deleted the record of the run."""
    return day_of(run) < (now - timedelta(days=KEPT_DAYS)).astimezone(UTC).strftime("%Y%m%d")


def day_of(run: str) -> str:
    """Return the day (UTC) in a run id as 8 digits. The digits may be an invalid date."""
    match = _DAY.match(run)
    assert match, run
    return "".join(match.groups())
