"""Notifies of jobs that could not do so themselves: a signal ended them, or they did not start."""

from __future__ import annotations

import threading
from datetime import datetime

from zsnapdb.config.notifications import NotificationEvent, NotifiedJob
from zsnapdb.config.settings import Settings
from zsnapdb.notify.notifier import Notifier, Tell
from zsnapdb.planning.agent.jobs import JobKind, JobName
from zsnapdb.planning.notifications.occasions import Occasion

_JOBS = {
    JobKind.SNAPSHOT: NotifiedJob.SNAPSHOT,
    JobKind.BACKUP: NotifiedJob.BACKUP,
    JobKind.FULL: NotifiedJob.BACKUP,
    JobKind.VERIFY: NotifiedJob.VERIFY,
    JobKind.DEEP_VERIFY: NotifiedJob.VERIFY,
    JobKind.DRILL: NotifiedJob.DRILL,
    JobKind.PRUNE: NotifiedJob.PRUNE,
    JobKind.COPY: NotifiedJob.COPY,
}


def notify_of_killed(settings: Settings, name: JobName, why: str, at: datetime, tell: Tell) -> None:
    """Notify of the failed job, if it is one that notifies. Returns at once: the agent waits for no receiver."""
    job = _JOBS.get(name.kind)
    if job is None or not settings.notifications.to or name.instance not in settings.instance:
        return
    repository = settings.instance[name.instance].repository
    text = f"{name.kind.value} of {name.instance} {why}"
    occasion = Occasion(NotificationEvent.FAILURE, name.instance, job.value, at, text, "", repository)
    threading.Thread(target=_send, args=(settings, occasion, tell), daemon=True).start()


def _send(settings: Settings, occasion: Occasion, tell: Tell) -> None:
    courier = Notifier(settings, tell)
    courier.post(occasion)
    courier.close()
