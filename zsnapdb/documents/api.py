"""The documents of the API that no command prints. The helper writes them, the API, the pages and clients show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, JsonValue

from zsnapdb.documents.base import Document


class ListedClone(Document):
    """What programs of all releases read of a clone (`CloneFields`). What a host does not say has its default."""

    name: str
    id: str
    owner: str = ""
    instance: str = ""
    requested: str = ""
    backup_id: str = ""
    position: str = ""
    created: str = ""
    expires: str = ""
    protected_until: str | None = None
    own_bytes: int | None = None
    quota: int = 0
    phase: str = ""
    pid: int | None = None
    elsewhere: str | None = None
    port: int | None = None
    bind_address: str = ""
    address: str = ""
    local_only: bool | None = None
    masked: bool | str | None = None
    profile: str = ""


class PointsRange(Document):
    """Every time from `from` to `to` can be given as `at`, and each of the backups as `from`."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    backups: tuple[str, ...]


class PointsGap(Document):
    """A time whose states are lost, and why."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    reason: str


class UsableSet(Document):
    """A snapshot set that lies on this host: a clone of it needs nothing of a repository."""

    id: Annotated[str, Field(validation_alias=AliasChoices("id", "backup_id"))]
    state: str


class PointsDocument(Document):
    """The states of an instance of which clones can be made, as they were known at `at`."""

    instance: str
    at: str
    recoverable: tuple[PointsRange, ...]
    gaps: tuple[PointsGap, ...]
    sets: tuple[UsableSet, ...] = ()


class ToldObjective(Document):
    """An objective, and whether it is met. `since` (UTC) is the time whose age is judged, as of the newest backup."""

    objective: str
    subject: str
    verdict: str
    reason: str
    since: str | None
    seconds: float | None
    limit_seconds: float | None


class InstanceObjectives(Document):
    """The objectives of an instance. `error` is the code of what prevents knowing them."""

    instance: str
    verdict: str | None = None
    objectives: tuple[ToldObjective, ...] = ()
    error: str | None = None


class ObjectivesDocument(Document):
    """The objectives of each instance."""

    instances: tuple[InstanceObjectives, ...]


class ToldStep(Document):
    """A step of a drill: of which kind, and how many seconds it took."""

    kind: str
    seconds: float


class ToldDrill(Document):
    """A drill: what was restored, when, how it went, and how long each step took."""

    drill_id: str
    backup_id: str
    requested: str
    started: str
    finished: str
    seconds: float
    outcome: str
    steps: tuple[ToldStep, ...] = ()


class ToldDrills(Document):
    """The newest drills of an instance, oldest first."""

    drills: tuple[ToldDrill, ...]


class EvidenceDocument(Document):
    """Records of an evidence log by number. `next` is what `after` asks for the later ones (null: there are none)."""

    instance: str
    records: tuple[Mapping[str, JsonValue], ...]
    not_believed: tuple[Mapping[str, JsonValue], ...]
    next: int | None


class LogsDocument(Document):
    """The last lines of the error log of a clone's server. The server, and who uses the clone, chose their text."""

    clone: str
    lines: tuple[str, ...]


class ShownLogin(Document):
    """The login of a clone. `host` and `port` are for clients on its host, `address` for others if not `local_only`."""

    host: str
    port: int
    address: str
    local_only: bool
    user: str
    password: str


class HeartbeatDocument(Document):
    """A clone whose holder is there, and how many seconds may pass until he says so again."""

    clone: str
    heartbeat: int


class BegunOperation(Document):
    """A request that is under way. `Location` names where it is followed."""

    operation: str


class CancelledOperation(Document):
    """A request that was ended early."""

    operation: str
    state: Literal["cancelled"]
