"""The settings of the ports that clones keep whatever becomes of their servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from zsnapdb.config.section import ConfigSection

_MOST_PORTS = 1000


class AddressSettings(ConfigSection):
    """Ports at which HAProxy listens for clones, from `first_port` to `last_port`, and its admin socket.

    Each clone that listens at `clones.bind_address` gets one, and keeps it. The server behind it has a port of its own.
    """

    socket: Path = Path("/run/zsnapdb-haproxy/admin.sock")
    first_port: Annotated[int, Field(ge=1024, le=65535)] = 23170
    last_port: Annotated[int, Field(ge=1024, le=65535)] = 23269

    @model_validator(mode="after")
    def _range(self) -> AddressSettings:
        if not 0 <= self.last_port - self.first_port < _MOST_PORTS:
            raise ValueError(f"first_port to last_port are not 1 to {_MOST_PORTS} ports")
        if not self.socket.is_absolute():
            raise ValueError(f"socket {self.socket} is not an absolute path")
        return self

    @property
    def ports(self) -> range:
        """All ports that clones may keep."""
        return range(self.first_port, self.last_port + 1)
