"""What is said of a unit of systemd that failed. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from zsnapdb.base.errors import BusyError
from zsnapdb.config.notifications import NotificationEvent
from zsnapdb.planning.notifications.occasions import Occasion

UNIT_NAME = r"[A-Za-z0-9:_.\\@-]{1,200}"
"""What a name of a unit may have (systemd.unit(5)), without what stands behind the dot."""
_OURS = re.compile(r"zsnapdb-(?P<job>[a-z]+)(@(?P<instance>.+))?")
_EXIT_CODE = "exit-code"


@dataclass(frozen=True)
class UnitEnd:
    """The name of a unit without .service, and how it ended.

    `result` and `status` are the words of systemd (systemd.exec(5), $SERVICE_RESULT and $EXIT_STATUS), "" if they are
    not known: before version 251 systemd does not tell what OnFailure= starts.
    """

    unit: str
    result: str = ""
    status: str = ""

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None if a signal or a limit ended it, or if it is not known."""
        return int(self.status) if self.result == _EXIT_CODE and self.status.isdecimal() else None


def of_unit(end: UnitEnd, at: datetime) -> Occasion | None:
    """Return the failure to tell of; None after a good end, or if the run found another one at work.

    Of a unit of ours the subject is the job, as of its own notification: so a target hears of one failure once.
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
