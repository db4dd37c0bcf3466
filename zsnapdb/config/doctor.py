"""The settings of `doctor`: rules that a site does not want to hear of, for a time."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from zsnapdb.config.section import ConfigSection


class SilencedRule(ConfigSection):
    """A rule that is silent up to and including the day `until` (UTC), and why. `instance` None: for all instances."""

    rule: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    reason: Annotated[str, Field(min_length=8, max_length=500)]
    until: date
    instance: str | None = None


class DoctorSettings(ConfigSection):
    """What `zsnapdb doctor` leaves out."""

    silenced: tuple[SilencedRule, ...] = ()
