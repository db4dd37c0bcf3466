"""The settings of objectives: what the protection of an instance must be at any time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from zsnapdb.base.quantities import Seconds
from zsnapdb.config.section import ConfigSection

_Time = Annotated[Seconds, Field(gt=0, le=100 * 365 * 86400.0)] | None


class ObjectiveSettings(ConfigSection):
    """The objectives of an instance. An objective that is left out is not judged.

    Ages are of the newest restorable point (`rpo`), the newest restorable backup, the end of the binlog archive
    (`archive_lag`), the newest drill that passed, and the last check of the backup that was checked longest ago.
    `window`: every moment this far back can be restored. `copies`: by repository, the greatest age of the newest
    restorable point there. `immutable_for`: the store keeps a backup from removal for at least this long after it was
    made. `restore_time`: the longest restore, estimated from drills. `warn_at`: the part of a limit from which on there
    is a warning.
    """

    rpo: _Time = None
    backup_age: _Time = None
    archive_lag: _Time = None
    drill_age: _Time = None
    verify_age: _Time = None
    deep_verify_age: _Time = None
    window: _Time = None
    copies: dict[str, Annotated[Seconds, Field(gt=0, le=100 * 365 * 86400.0)]] = Field(default_factory=dict)
    immutable_for: _Time = None
    restore_time: _Time = None
    warn_at: Annotated[float, Field(gt=0, le=1)] = 0.8
