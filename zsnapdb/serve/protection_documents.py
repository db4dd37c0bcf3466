"""What is told of the protection of instances, field by field. The helper writes it, the API and the pages show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, JsonValue


class ToldPart(BaseModel):
    """A part of what is told. Fields that it does not know are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class PointsRange(ToldPart):
    """Every time from `from` to `to` can be given as `at`, and each of the backups as `from`."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    backups: tuple[str, ...]


class PointsGap(ToldPart):
    """A time whose states are lost, and why."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    reason: str


class UsableSet(ToldPart):
    """A snapshot set that lies on this host: a clone of it needs nothing of a repository."""

    id: Annotated[str, Field(validation_alias=AliasChoices("id", "backup_id"))]
    state: str


class PointsDocument(ToldPart):
    """The states of an instance of which clones can be made, as they were known at `at`."""

    instance: str
    at: str
    recoverable: tuple[PointsRange, ...]
    gaps: tuple[PointsGap, ...]
    sets: tuple[UsableSet, ...] = ()


class ToldObjective(ToldPart):
    """An objective, and whether it is met. `since` (UTC) is the time whose age is judged, as of the newest backup."""

    objective: str
    subject: str
    verdict: str
    reason: str
    since: str | None
    seconds: float | None
    limit_seconds: float | None


class InstanceObjectives(ToldPart):
    """The objectives of an instance. `error` is the code of what prevents knowing them."""

    instance: str
    verdict: str | None = None
    objectives: tuple[ToldObjective, ...] = ()
    error: str | None = None


class ObjectivesDocument(ToldPart):
    """The objectives of each instance."""

    instances: tuple[InstanceObjectives, ...]


class ToldStep(ToldPart):
    """A step of a drill: of which kind, and how many seconds it took."""

    kind: str
    seconds: float


class ToldDrill(ToldPart):
    """A drill: what was restored, when, how it went, and how long each step took."""

    drill_id: str
    backup_id: str
    requested: str
    started: str
    finished: str
    seconds: float
    outcome: str
    steps: tuple[ToldStep, ...] = ()


class ToldDrills(ToldPart):
    """The newest drills of an instance, oldest first."""

    drills: tuple[ToldDrill, ...]


class EvidenceDocument(ToldPart):
    """Records of an evidence log by number. `next` is what `after` asks for the later ones (null: there are none)."""

    instance: str
    records: tuple[Mapping[str, JsonValue], ...]
    not_believed: tuple[Mapping[str, JsonValue], ...]
    next: int | None
