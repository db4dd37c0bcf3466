"""The settings that say how the server of an instance is stopped and started, as `zsnapdb rewind` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from zsnapdb.base.quantities import Seconds
from zsnapdb.config.section import ConfigSection

_Words = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]


class ControlSettings(ConfigSection):
    """How the server is stopped and started: by its systemd unit, or by two commands of the site.

    With none of them the unit of the running server is used. `timeout`: a stop and a start may each take this long.
    `server_id_file` is an option file that the server reads and zsnapdb alone writes: MariaDB gets its new server_id
    there.
    """

    unit: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9:_.@-]{0,200}$")] | None = None
    stop: _Words | None = None
    start: _Words | None = None
    timeout: Annotated[Seconds, Field(gt=0, le=86400)] = 900.0
    server_id_file: Path | None = None

    @field_validator("server_id_file")
    @classmethod
    def _absolute(cls, file: Path | None) -> Path | None:
        if file is not None and (not file.is_absolute() or ".." in file.parts or file.suffix != ".cnf"):
            raise ValueError("name a file by its whole path; its name ends in .cnf")
        return file

    @model_validator(mode="after")
    def _one_way(self) -> ControlSettings:
        if (self.stop is None) != (self.start is None):
            raise ValueError("give stop and start together")
        if self.unit is not None and self.stop is not None:
            raise ValueError("give either unit, or stop and start")
        return self
