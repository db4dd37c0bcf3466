"""Settings of clones: their stable ports, their pools, and the check of a migration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from zsnapdb.base.quantities import Seconds, Size, size
from zsnapdb.config.section import AbsolutePath, ConfigSection

_MOST_PORTS = 1000


class AddressSettings(ConfigSection):
    """Ports where HAProxy listens for clones, from `first_port` to `last_port`, and its admin socket.

    Each clone that listens at `clones.bind_address` gets one and keeps it. The server behind it has its own port.
    """

    socket: AbsolutePath = Path("/run/zsnapdb-haproxy/admin.sock")
    first_port: Annotated[int, Field(ge=1024, le=65535)] = 23170
    last_port: Annotated[int, Field(ge=1024, le=65535)] = 23269

    @model_validator(mode="after")
    def _range(self) -> AddressSettings:
        if not 0 <= self.last_port - self.first_port < _MOST_PORTS:
            raise ValueError(f"first_port to last_port must be 1 to {_MOST_PORTS} ports")
        return self

    @property
    def ports(self) -> range:
        """All ports that clones may keep."""
        return range(self.first_port, self.last_port + 1)


LEAST_MEMORY = 100 << 20
"""Minimum memory of a server in bytes: 113 MB seen with MariaDB and 162 MB with MySQL, with a small buffer pool."""


class PoolSettings(ConfigSection):
    """A pool of `size` clones that are started and checked in advance, for the next requests.

    Their data is at most `max_age` seconds old: a pool serves `latest`, as of the creation of its clones. `memory` is
    the limit for all their servers together in bytes (None: only half of the host's free memory).
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


MigrationCommand = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class MigrationSettings(ConfigSection):
    """The migration of the site, and its limits.

    `command` runs it, in the working directory of `zsnapdb migration-check`, for at most `timeout` seconds. It is a
    problem if it takes more than `longest`. It is also one if another client's statement on a table waits more than
    `longest_read_wait` or `longest_write_wait` seconds. With `repeatable` a second run must succeed and leave the
    schema unchanged. None: no limit.
    """

    command: MigrationCommand = ()
    timeout: Annotated[Seconds, Field(gt=0, le=7 * 86400.0)] = 3600.0
    longest: Annotated[Seconds, Field(gt=0)] | None = None
    longest_read_wait: Annotated[Seconds, Field(gt=0)] | None = 1.0
    longest_write_wait: Annotated[Seconds, Field(gt=0)] | None = 1.0
    repeatable: StrictBool = False
