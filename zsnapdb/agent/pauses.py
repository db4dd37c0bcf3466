"""Pauses of an instance: no job of it begins for some time."""

from __future__ import annotations

from datetime import datetime, timedelta

from zsnapdb.agent.records import Records
from zsnapdb.base.errors import UsageError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.planning.agent.runs import PauseRecord

_LONGEST = 31 * 86400.0


def pause(settings: Settings, instance: str, seconds: float, reason: str, host: Host) -> datetime | None:
    """Let no job of the instance begin for so many seconds; 0 ends a pause. Return until when, None if it ended.

    A running agent notices it within ten seconds. UsageError if the pause is too long, or the reason is no text.
    """
    name, _ = settings.one_instance(instance)
    if not 0 <= seconds <= _LONGEST:
        raise UsageError("the pause is too long", hint="pause for at most 31d")
    if not 0 < len(reason.strip()) <= 500:
        raise UsageError("the reason is empty or too long", hint="write a reason of at most 500 characters")
    records = Records(settings.agent.state)
    if not seconds:
        records.set_pause(name, None)
        return None
    until = host.now() + timedelta(seconds=seconds)
    records.set_pause(name, PauseRecord(until=until, reason=reason))
    return until
