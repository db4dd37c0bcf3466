"""Notifies of the objectives that broke and of those that are met again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from zsnapdb.config import Settings
from zsnapdb.jobs.repository.status import InstanceStatus
from zsnapdb.notify.courier import Courier, Tell
from zsnapdb.planning.notifications.occasions import JudgedInstance, of_judgements, overall


def notify_of(settings: Settings, states: Sequence[InstanceStatus], at: datetime, tell: Tell) -> tuple[str, ...]:
    """Notify every target of what is new to it, and return the targets that could not be reached.

    A ping target of objectives hears of every judgement of all its instances. Waits at most for the budget.
    """
    judged = [_judged(state) for state in states]
    courier = Courier(settings, tell)
    for occasion in of_judgements(judged, at):
        courier.post(occasion)
    for name, target in settings.notifications.to.items():
        whole = overall(target, judged, settings.instance, at)
        if whole is not None:
            courier.post_to(name, whole)
    return courier.close()


def _judged(state: InstanceStatus) -> JudgedInstance:
    health = state.status.health if state.status is not None else None
    error = state.error.message if state.error is not None else ""
    return JudgedInstance(state.instance, state.repository, health, error)
