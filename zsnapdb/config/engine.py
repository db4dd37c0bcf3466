"""The settings of the engine that moves jobs between hosts: how it is reached, and what a host does for it."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.config.section import ConfigSection

HOST_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
FleetHostName = Annotated[str, Field(pattern=rf"^{HOST_NAME}$")]
"""The name of a host of a fleet: what its certificate says, and the end of the name of its queue."""
_ADDRESS = r"^(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):[0-9]{1,5}$"


class FleetVerb(StrEnum):
    """What the engine may have a host do. Each can be repeated: what a run has done is shown, not done again."""

    BACKUP = "backup"
    DRILL = "drill"
    VERIFY = "verify"


class EngineSettings(ConfigSection):
    """How the engine (Temporal) is reached. Beyond loopback TLS is needed, with a certificate of this party.

    `ca` is the authority of the server's certificate (None: those of this host), `server_name` the name in it (None:
    that of the address).
    """

    server: Annotated[str, Field(pattern=_ADDRESS)]
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")] = "fleet"
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether the address is one of this host, written as a number or as localhost."""
        host = self.server.rpartition(":")[0].strip("[]")
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @model_validator(mode="after")
    def _is_safe(self) -> EngineSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give certificate and key, or neither")
        if self.certificate is None and (self.ca is not None or self.server_name is not None):
            raise ValueError("ca and server_name mean nothing without certificate and key")
        if self.certificate is None and not self.is_loopback:
            raise ValueError("a server beyond loopback needs certificate and key: else anybody can ask this host")
        return self


class WorkerSettings(EngineSettings):
    """What this host does for a fleet (`zsnapdb fleet worker`).

    `host` is its name there. `verbs` are what it does; whatever else is asked of it is refused here. `drills`: it also
    takes drills of configured instances that any host may do, if so much `memory` is available. `at_once`: how many
    jobs of its own run at once. `spacing`: seconds between the beginnings of two runs of the same job, whoever wants
    more. `fallback` agent: a backup that the agent has a schedule for, and that the fleet has not begun
    `fallback_after` later, is begun by the agent; none: the agent's own schedules hold as if there were no fleet.
    """

    host: FleetHostName
    verbs: Annotated[tuple[FleetVerb, ...], Field(min_length=1)] = tuple(FleetVerb)
    drills: StrictBool = False
    memory: Annotated[Size, Field(ge=0)] = 1 << 30
    at_once: Annotated[int, Field(ge=1, le=16)] = 2
    spacing: Annotated[Seconds, Field(ge=0, le=86400)] = 60.0
    fallback: Literal["agent", "none"] = "agent"
    fallback_after: Annotated[Seconds, Field(ge=60, le=31 * 86400.0)] = 7200.0

    @field_validator("verbs")
    @classmethod
    def _each_once(cls, verbs: tuple[FleetVerb, ...]) -> tuple[FleetVerb, ...]:
        if len(set(verbs)) != len(verbs):
            raise ValueError("a verb is named twice")
        return verbs

    @model_validator(mode="after")
    def _may_drill(self) -> WorkerSettings:
        if self.drills and FleetVerb.DRILL not in self.verbs:
            raise ValueError("drills needs drill in verbs")
        return self
