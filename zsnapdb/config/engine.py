"""Settings of the engine that distributes jobs to hosts: its address, and the jobs that a host runs for it."""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from zsnapdb.base.quantities import Seconds, Size
from zsnapdb.config.section import AbsolutePath, ConfigSection

HOST_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
FleetHostName = Annotated[str, Field(pattern=rf"^{HOST_NAME}$")]
"""Name of a host of a fleet: the name in its certificate, and the suffix of its queue's name."""
_ADDRESS = r"^(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):[0-9]{1,5}$"


class FleetVerb(StrEnum):
    """Jobs that the engine may run on a host. Each can be repeated, which reports completed work without redoing it."""

    BACKUP = "backup"
    DRILL = "drill"
    VERIFY = "verify"


class EngineSettings(ConfigSection):
    """Address of the engine (Temporal). Beyond loopback it needs TLS, with a client certificate.

    `ca` is the authority of the server's certificate (None: those of this host), `server_name` the name in it (None:
    that of the address).
    """

    server: Annotated[str, Field(pattern=_ADDRESS)]
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")] = "fleet"
    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None
    server_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] | None = None

    @property
    def is_loopback(self) -> bool:
        """Return whether the address is a loopback address or localhost."""
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
            raise ValueError(
                "a server that is not on loopback needs certificate and key, or anyone could query this host"
            )
        return self


class WorkerSettings(EngineSettings):
    """Jobs that this host runs for a fleet (`zsnapdb fleet worker`).

    `host` is its name there. It runs only the `verbs` and refuses all other requests. `drills`: it also runs drills of
    configured instances that any host may run, if `memory` is available. `at_once`: maximum number of its concurrent
    jobs. `spacing`: minimum seconds between the starts of two runs of the same job. `fallback` agent: if the agent has
    a schedule for a backup, and the fleet has not started it `fallback_after` seconds later, the agent does. `fallback`
    none: the agent follows its own schedules as if there were no fleet.
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
