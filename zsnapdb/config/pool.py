"""The settings of a pool of clones."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from zsnapdb.base.quantities import Seconds, Size, size
from zsnapdb.config.section import ConfigSection

LEAST_MEMORY = 100 << 20
"""What a server takes at least, in bytes: 113 MB were seen of MariaDB and 162 MB of MySQL, with a small buffer pool."""


class PoolSettings(ConfigSection):
    """Clones that wait, started and checked, for whoever asks first: `size` of them.

    Their data is at most `max_age` seconds old: a pool serves `latest` with what was the newest set then. `memory` is
    what all their servers together may take, in bytes (None: no limit beside half of the host's free memory).
    """

    size: Annotated[int, Field(ge=1, le=50)]
    max_age: Annotated[Seconds, Field(ge=60, le=366 * 86400.0)] = 86400.0
    memory: Annotated[Size, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_room(self) -> PoolSettings:
        if self.memory is not None and self.memory < self.size * LEAST_MEMORY:
            raise ValueError(
                f"a pool of {self.size} needs at least {size(self.size * LEAST_MEMORY)} of memory, and has"
                f" {size(self.memory)}"
            )
        return self
