"""Decides which notification targets receive an event, based on the problems that each target knows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from zsnapdb.base.errors import BusyError
from zsnapdb.config.notifications import NotificationEvent, NotificationTarget, NotifiedJob
from zsnapdb.planning.health.objectives import Health, Objective, Verdict

READABLE = "repository"
"""The subject of events that say whether zsnapdb could read the state of an instance."""
_FIRST = NotificationEvent.START, NotificationEvent.SUCCESS, NotificationEvent.FAILURE


@dataclass(frozen=True)
class Occasion:
    """An event about a job or an objective (`subject`) of an instance at a time (UTC)."""

    event: NotificationEvent
    instance: str
    subject: str
    at: datetime
    text: str
    hint: str = ""
    repository: str = ""
    exit_code: int | None = None
    run_id: str = ""


class _FrozenRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KnownProblem(_FrozenRecord):
    """A problem that was reported to a target, but whose end has not been reported yet."""

    instance: Annotated[str, Field(max_length=200)]
    subject: Annotated[str, Field(max_length=200)]
    repository: Annotated[str, Field(max_length=200)]
    sent: AwareDatetime
    is_objective: bool = False
    """Whether the subject is an objective, and not a job of the same name."""

    def is_of(self, occasion: Occasion) -> bool:
        known = (self.instance, self.subject, self.repository, self.is_objective)
        return known == (occasion.instance, occasion.subject, occasion.repository, occasion.event.is_of_objective)


class FailedDelivery(_FrozenRecord):
    """A notification that did not arrive."""

    at: AwareDatetime
    event: NotificationEvent
    instance: Annotated[str, Field(max_length=200)]
    subject: Annotated[str, Field(max_length=200)]
    error: Annotated[str, Field(max_length=1000)]


class TargetMemory(_FrozenRecord):
    """The notifications that a target received.

    The field `failed` is the last failed delivery, or None if a later delivery succeeded.
    """

    format: Literal[1] = 1
    problems: tuple[KnownProblem, ...] = ()
    failed: FailedDelivery | None = None

    def arrived(self, occasion: Occasion) -> TargetMemory:
        others = tuple(problem for problem in self.problems if not problem.is_of(occasion))
        problem = KnownProblem(
            instance=occasion.instance,
            subject=occasion.subject,
            repository=occasion.repository,
            sent=occasion.at,
            is_objective=occasion.event.is_of_objective,
        )
        if occasion.event in (NotificationEvent.START, NotificationEvent.TEST):
            return TargetMemory(problems=self.problems)
        return TargetMemory(problems=(*others, problem) if occasion.event.is_problem else others)

    def not_arrived(self, occasion: Occasion, error: str) -> TargetMemory:
        failed = FailedDelivery(
            at=occasion.at,
            event=occasion.event,
            instance=occasion.instance,
            subject=occasion.subject,
            error=error[:1000],
        )
        return self.model_copy(update={"failed": failed})


def concerns(target: NotificationTarget, occasion: Occasion) -> bool:
    """Return whether a target is configured to receive events of this kind.

    Earlier notifications to the target do not matter.
    """
    if target.instances and occasion.instance and occasion.instance not in target.instances:
        return False
    if occasion.event is NotificationEvent.TEST:
        return True
    if target.is_ping:
        # The objective `drill` stays met long after the last drill, so it does not show the state of the job `drill`.
        is_of_objective = target.of is NotifiedJob.OBJECTIVES
        return occasion.subject == target.of and occasion.event.is_of_objective is is_of_objective
    if occasion.subject == NotifiedJob.OBJECTIVES:
        return False
    problem = {
        NotificationEvent.SUCCESS: NotificationEvent.FAILURE,
        NotificationEvent.MET: NotificationEvent.BROKEN,
    }.get(occasion.event, occasion.event)
    return occasion.event in target.events or problem in target.events


def is_news(target: NotificationTarget, memory: TargetMemory, occasion: Occasion) -> bool:
    """Return whether a target must be notified of an event now. The target is configured to receive such events.

    - A ping target gets every event, because missing pings cause an alarm.
    - Other targets get a problem once, and a reminder each time after `repeat`.
    - Other targets get the end of a problem if they got the problem.
    - Other targets get starts and successes of jobs only if they subscribed to these events.
    """
    if target.is_ping or occasion.event is NotificationEvent.TEST:
        return True
    known = next((problem for problem in memory.problems if problem.is_of(occasion)), None)
    if occasion.event.is_problem:
        # If the clock was set back, report the problem again.
        age = (occasion.at - known.sent).total_seconds() if known is not None else None
        return age is None or age < 0 or age >= target.repeat
    if known is not None and occasion.event is not NotificationEvent.START:
        return True
    return occasion.event in target.events and occasion.event in _FIRST


@dataclass(frozen=True)
class JudgedInstance:
    """The health of an instance in its repository, or the error that prevented a judgement."""

    instance: str
    repository: str
    health: Health | None
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Whether no objective is broken. An instance with a warning is good."""
        return self.health is not None and self.health.verdict is not Verdict.BROKEN


def judgement_occasions(judged: Iterable[JudgedInstance], at: datetime) -> Iterator[Occasion]:
    """Yield an event for the state of every objective: BROKEN or MET.

    If an instance could not be judged, only one event about this failure is yielded for it.
    """
    for one in judged:
        broken = one.health is None
        yield Occasion(
            NotificationEvent.BROKEN if broken else NotificationEvent.MET,
            one.instance,
            READABLE,
            at,
            one.error or "the state can be read",
            repository=one.repository,
        )
        for judgement in one.health.judgements if one.health is not None else ():
            is_broken = judgement.verdict is Verdict.BROKEN
            yield Occasion(
                NotificationEvent.BROKEN if is_broken else NotificationEvent.MET,
                one.instance,
                judgement.name,
                at,
                judgement.reason,
                judgement.hint,
                one.repository,
            )
        if one.health is not None and all(known.objective is not Objective.SERVER for known in one.health.judgements):
            # This objective exists only while a restore replaces the server, so its end is reported explicitly.
            text = "no restore that replaces the server is running any more"
            yield Occasion(
                NotificationEvent.MET, one.instance, Objective.SERVER.value, at, text, repository=one.repository
            )


def overall(
    target: NotificationTarget, judged: Sequence[JudgedInstance], known: Iterable[str], at: datetime
) -> Occasion | None:
    """Return one event about all objectives for a target that is notified of objectives.

    Return None if the target is of another kind, or if some of its instances were not judged.

    The argument `known` contains the configured instances. The event is MET only if none of their objectives is broken.
    """
    names = set(target.instances or known)
    mine = [one for one in judged if one.instance in names]
    if target.of is not NotifiedJob.OBJECTIVES or {one.instance for one in mine} != names:
        return None
    bad = sorted(one.instance for one in mine if not one.is_good)
    event = NotificationEvent.BROKEN if bad or not mine else NotificationEvent.MET
    good = "every objective is met" if mine else "no instance is configured"
    text = f"objectives are broken: {', '.join(bad)}" if bad else good
    return Occasion(event, "", NotifiedJob.OBJECTIVES.value, at, text)


UNIT_NAME = r"[A-Za-z0-9:_.\\@-]{1,200}"
"""The pattern of valid systemd unit names (systemd.unit(5)), without the suffix after the dot."""
_OURS = re.compile(r"zsnapdb-(?P<job>[a-z]+)(@(?P<instance>.+))?")
_EXIT_CODE = "exit-code"


@dataclass(frozen=True)
class UnitEnd:
    """The name of a systemd unit without .service, and the way in which the unit ended.

    `result` and `status` are systemd's $SERVICE_RESULT and $EXIT_STATUS (systemd.exec(5)), or "" if unknown: before
    version 251, systemd does not pass these variables to OnFailure= units.
    """

    unit: str
    result: str = ""
    status: str = ""

    @property
    def exit_code(self) -> int | None:
        """The unit's exit code; None if a signal or a limit ended the unit, or if the code is unknown."""
        return int(self.status) if self.result == _EXIT_CODE and self.status.isdecimal() else None


def unit_failure(end: UnitEnd, at: datetime) -> Occasion | None:
    """Return the failure of a unit that must be reported.

    Return None if the unit succeeded, or if its run was refused because of another run. For a unit of zsnapdb, the
    subject of the result is the job, as in the job's own notification. So a target is notified of a failure only once.
    """
    if end.result == "success" or end.exit_code == BusyError.exit_code:
        return None
    ours = _OURS.fullmatch(end.unit)
    job, instance = (ours["job"], ours["instance"] or "") if ours is not None else (end.unit, "")
    text = f"unit {end.unit} failed"
    if end.result:
        text += f": {end.result}" + (f" {end.status}" if end.status else "")
    hint = f"run `journalctl -u {end.unit}`, which says why"
    return Occasion(NotificationEvent.FAILURE, instance, job, at, text, hint, exit_code=end.exit_code)
