"""Notifications about commands, about missed and restored objectives, and about pools with too little space."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from zsnapdb.base.errors import INTERRUPTED, BusyError, UsageError, ZsnapdbError, exit_code
from zsnapdb.config.notifications import NotificationEvent, NotifiedJob
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import THIS_HOST
from zsnapdb.jobs.clone.space_limits import PoolRoom, pools_of_clones
from zsnapdb.jobs.repository.protection_status import InstanceStatus
from zsnapdb.notify.notifier import Notifier, Tell
from zsnapdb.planning.health.notification_events import (
    UNIT_NAME,
    JudgedInstance,
    Occasion,
    UnitEnd,
    judgement_occasions,
    overall,
    unit_failure,
)

_AT_AN_INTERRUPT = 5.0
"""Maximum time in seconds that an interrupted command waits for its notifications."""
_TOLD = ("SERVICE_RESULT", "EXIT_STATUS")
"""Variables that systemd sets for ExecStopPost=. For OnFailure=, they have the prefix MONITOR_ (systemd.exec(5))."""


@contextmanager
def notified(settings: Settings, job: NotifiedJob, instance: str, tell: Tell) -> Iterator[None]:
    """Send notifications when a `with` block starts and ends, which runs a job of the instance. Exceptions propagate.

    The notification of the start is sent while the block runs. After the block, this function waits for deliveries, but
    not longer than the configured budget. If a run is refused because another run is active (exit code 75), no success
    and no failure is sent.
    """

    def occasion(event: NotificationEvent, text: str, code: int | None = None, hint: str = "") -> Occasion:
        repository = settings.instance[instance].repository
        now, run = THIS_HOST.now(), THIS_HOST.run_id()
        return Occasion(event, instance, job.value, now, text, hint, repository, code, run)

    courier, began, what = Notifier(settings, tell), time.monotonic(), f"{job.value} of {instance}"
    courier.post(occasion(NotificationEvent.START, f"{what} begins"))
    code, why, hint = 0, "", ""
    try:
        yield
    except BaseException as error:
        code, why, hint = _code(error), _why(error), str(getattr(error, "hint", ""))
        raise
    finally:
        took = f"after {time.monotonic() - began:.0f} s"
        if code == 0:
            courier.post(occasion(NotificationEvent.SUCCESS, f"{what} ended well {took}", code))
        elif code != BusyError.exit_code:
            courier.post(
                occasion(NotificationEvent.FAILURE, f"{what} failed {took}, exit code {code}{why}", code, hint)
            )
        courier.close(_AT_AN_INTERRUPT if code == INTERRUPTED else None)


def send_test(settings: Settings, names: list[str], tell: Tell) -> tuple[str, ...]:
    """Send a test message to these targets. Return the targets that did not get the message."""
    courier = Notifier(settings, tell)
    text = "This is a test. Nothing has happened."
    for name in names:
        courier.post_to(name, Occasion(NotificationEvent.TEST, "", "notifications", THIS_HOST.now(), text))
    return courier.close()


def send_failed_unit(settings: Settings, unit: str, told: Mapping[str, str], tell: Tell) -> tuple[str, ...]:
    """Send notifications about the failed systemd unit, and return the unreachable targets.

    If the unit succeeded, send nothing.

    `told` contains the variables that systemd set. Raise UsageError if `unit` is not a unit name.
    """
    if re.fullmatch(UNIT_NAME, unit) is None:
        raise UsageError(f"{unit!r} is not the name of a unit", hint="write it without .service: zsnapdb-backup@main")
    result, status = (told.get(f"MONITOR_{name}", told.get(name, "")) for name in _TOLD)
    courier, occasion = Notifier(settings, tell), unit_failure(UnitEnd(unit, result, status), THIS_HOST.now())
    if occasion is None:
        return ()
    instance = settings.instance.get(occasion.instance)
    courier.post(replace(occasion, repository=instance.repository) if instance is not None else occasion)
    return courier.close()


def _code(error: BaseException) -> int:
    """Return the exit code of a command that raised `error`. An exit of the CLI (`typer.Exit`) has its own code."""
    code = getattr(error, "exit_code", None)
    return code if isinstance(code, int) else exit_code(error)


def _why(error: BaseException) -> str:
    if isinstance(error, ZsnapdbError):
        # The error's notes describe the state after the error, such as a stopped server.
        text = "; ".join([error.message, *getattr(error, "__notes__", [])])
    else:
        # An exit raised by the CLI itself has no text, because the error was already printed.
        text = "" if hasattr(error, "exit_code") else str(error) or type(error).__name__
    return f": {' '.join(text.split())[:1000]}" if text else ""


def notify_of(settings: Settings, states: Sequence[InstanceStatus], at: datetime, tell: Tell) -> tuple[str, ...]:
    """Send each target the states that were not sent to it yet. Return the unreachable targets.

    A ping target for objectives gets every result, combined for all instances of the target. The wait for deliveries is
    limited to the configured budget.
    """
    judged = [_judged_instance(state) for state in states]
    courier = Notifier(settings, tell)
    for occasion in (*judgement_occasions(judged, at), *(_of_pool(room, at) for room in _pools(settings))):
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
    """Return the pools that clones may use; empty if ZFS is unavailable, as on a host that only reads repositories."""
    try:
        return pools_of_clones(settings)
    except (ZsnapdbError, OSError):
        return ()


def _of_pool(room: PoolRoom, at: datetime) -> Occasion:
    """Return a notification that says whether the pool has enough free space.

    The notification belongs to no instance.
    """
    wrong = room.objection
    event = NotificationEvent.MET if wrong is None else NotificationEvent.BROKEN
    text = f"the pool {room.pool} has clones.free_floor free" if wrong is None else wrong.text
    return Occasion(event, "", f"free-floor {room.pool}", at, text, wrong.hint if wrong is not None else "")
