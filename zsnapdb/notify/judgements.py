"""Notifies of the objectives that broke and of those that are met again, and of pools that have too little free."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.notifications import NotificationEvent
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.clone.room import PoolRoom, pools_of_clones
from zsnapdb.jobs.repository.status import InstanceStatus
from zsnapdb.notify.notifier import Notifier, Tell
from zsnapdb.planning.notifications.occasions import JudgedInstance, Occasion, of_judgements, overall


def notify_of(settings: Settings, states: Sequence[InstanceStatus], at: datetime, tell: Tell) -> tuple[str, ...]:
    """Notify every target of what is new to it, and return the targets that could not be reached.

    A ping target of objectives hears of every judgement of all its instances. Waits at most for the budget.
    """
    judged = [_judged(state) for state in states]
    courier = Notifier(settings, tell)
    for occasion in (*of_judgements(judged, at), *(_of_pool(room, at) for room in _pools(settings))):
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


def _pools(settings: Settings) -> Sequence[PoolRoom]:
    """Return the pools in which clones may live; none where ZFS does not tell, as on a host that only reads."""
    try:
        return pools_of_clones(settings)
    except (ZsnapdbError, OSError):
        return ()


def _of_pool(room: PoolRoom, at: datetime) -> Occasion:
    """Return whether the pool has the space that production may need. It is about the host, not about an instance."""
    wrong = room.objection
    event = NotificationEvent.MET if wrong is None else NotificationEvent.BROKEN
    text = f"the pool {room.pool} has clones.free_floor free" if wrong is None else wrong.text
    return Occasion(event, "", f"free-floor {room.pool}", at, text, wrong.hint if wrong is not None else "")
