"""Resets a clone: gives it the data of a snapshot set again; its name, port, credentials and lease stay.

What replaces the data takes longer to load than some rows to undo, so it is loaded only for that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zsnapdb.base.errors import UnknownNameError, ZsnapdbError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.events import Events
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import handed, row_reset
from zsnapdb.jobs.clone.catalogue import CloneInfo, held, ready
from zsnapdb.jobs.clone.row_reset import UndoneRows

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.data_reset import ResetPlan


def reset_plan(
    settings: Settings,
    host: Host,
    name: str,
    requested: str | None,
    *,
    accepts_older: bool = False,
    replaces: bool = False,
) -> ResetPlan:
    """Return what `reset` would do; change nothing. What is written meanwhile may change it."""
    from zsnapdb.jobs.clone import data_reset

    info, reason = ready(settings, host, name), ""
    if requested is None and not replaces:
        try:
            undoes = row_reset.plan(settings, host, info)
            return data_reset.ResetPlan(info, info.backup_id, {}, is_original=True, drops="", undoes=undoes)
        except (ZsnapdbError, OSError) as error:
            reason = _reason(error)
    return replace(data_reset.plan(settings, host, info, requested, accepts_older=accepts_older), reason=reason)


def _reason(error: ZsnapdbError | OSError) -> str:
    return error.message if isinstance(error, ZsnapdbError) else f"reading its binlog: {error.strerror}"


@dataclass(frozen=True)
class ResetClone:
    """A clone that was reset: by undoing rows, or (None) by replacing its data, and why not by rows ("": not asked)."""

    info: CloneInfo
    undone: UndoneRows | None = None
    reason: str = ""


def reset(
    settings: Settings,
    host: Host,
    name: str,
    requested: str | None,
    events: Events,
    *,
    accepts_older: bool = False,
    replaces: bool = False,
    meant: CloneInfo | None = None,
) -> ResetClone:
    """Give the clone its original data again (`requested` None), or the data of the requested snapshot set.

    The original data is that of the snapshot set that the clone was created from, whatever it was reset to since.
    Port, credentials and lease stay. Afterwards the clone's server runs on that data. The data of before is gone, but
    the clone's commits stay. What was changed in the original data is undone row by row if that is certain to give the
    same, unless the data is to be replaced in any case (`replaces`). `accepts_older` is as for `locate`.
    UnknownNameError if another clone has the name by now than the one that is `meant`.
    """
    with held(settings, host, name) as info:
        if meant is not None and (info.created, info.server_id) != (meant.created, meant.server_id):
            raise UnknownNameError(f"clone {meant.label} is gone; another has its name", hint="nothing was changed")
        reason = ""
        if requested is None and not replaces:
            try:
                return ResetClone(info, row_reset.undo_rows(settings, host, info))
            except (ZsnapdbError, OSError) as error:
                reason = _reason(error)
        handed.forget(host, info.name)
        from zsnapdb.jobs.clone import data_reset

        replaced = data_reset.replace_data(settings, host, info, requested, events, accepts_older=accepts_older)
        return ResetClone(replaced, reason=reason)
