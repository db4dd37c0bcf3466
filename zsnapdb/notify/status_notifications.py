"""Notifications of objectives that are broken or met again, and of pools with too little free space."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.config.notifications import NotificationEvent
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.clone.space_limits import PoolRoom, pools_of_clones
from zsnapdb.jobs.repository.status import InstanceStatus
from zsnapdb.notify.notifier import Notifier, Tell
from zsnapdb.planning.notifications.events import JudgedInstance, Occasion, judgement_metrics, overall


def notify_of(settings: Settings, states: Sequence[InstanceStatus], at: datetime, tell: Tell) -> tuple[str, ...]:
    """Send each target its new states, and return the unreachable targets.

    A ping target for objectives gets every result, combined for all its instances. The wait is limited to the budget.
    """
    judged = [_judged_instance(state) for state in states]
    courier = Notifier(settings, tell)
    for occasion in (*judgement_metrics(judged, at), *(_of_pool(room, at) for room in _pools(settings))):
        courier.post(occasion)
    for name, target in settings.notifications.to.items():
        whole = overall(target, judged, settings.instance, at)
        if whole is not None:
            courier.post_to(name, whole)
    return courier.close()


def _judged_instance(state: InstanceStatus) -> JudgedInstance:
    health = state.status.health if state.status is not None else None
    error = state.error.message if state.error is not None else ""
    return JudgedInstance(state.instance, state.repository, health, error)


def _pools(settings: Settings) -> Sequence[PoolRoom]:
    """Return the pools that clones may use; empty if ZFS is unavailable, as on a host that only reads."""
    try:
        return pools_of_clones(settings)
    except (ZsnapdbError, OSError):
        return ()


def _of_pool(room: PoolRoom, at: datetime) -> Occasion:
    """Return whether the pool has the free space that production may need. This concerns the host, not an instance."""
    wrong = room.objection
    event = NotificationEvent.MET if wrong is None else NotificationEvent.BROKEN
    text = f"the pool {room.pool} has clones.free_floor free" if wrong is None else wrong.text
    return Occasion(event, "", f"free-floor {room.pool}", at, text, wrong.hint if wrong is not None else "")
