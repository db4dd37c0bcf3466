"""The documents of the agent: its jobs, an immediate run, a pause, and the targets of notifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from zsnapdb.documents.base import At, Document, Dumped, iso, or_null, rows

_Run = Annotated[dict[str, Any], Dumped("zsnapdb.planning.agent.runs.RunRecord", without=("format",))]


def _run(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = record.model_dump(mode="json", exclude={"format"})
    return fields


def _pauses(pauses: Any) -> list[dict[str, object]]:
    return [{"instance": name, "until": iso(pause.until), "reason": pause.reason} for name, pause in pauses]


def _held_instances(held: Mapping[str, str]) -> list[dict[str, object]]:
    return rows("instance", "reason")(sorted(held.items()))


class AgentJobFields(Document):
    """A job of the agent. `instance` is null for a job of the host. `next` is null for a job that runs continuously."""

    instance: Annotated[str | None, At("job.name.own_instance")]
    job: Annotated[str, At("job.name.kind")]
    next: Annotated[str | None, At("next", iso)]
    last: Annotated[_Run | None, At("last", _run)]


class PauseFields(Document):
    """A pause of an instance, or of the host."""

    instance: str | None
    until: str
    reason: str


class HeldFields(Document):
    """An instance whose jobs do not start: its server is being replaced and is down."""

    instance: str
    reason: str


class AgentDocument(Document):
    """The jobs of the agent. `difference`: the difference between the running agent's configuration and the file."""

    is_running: bool
    difference: Annotated[str | None, At("difference", or_null)]
    jobs: tuple[AgentJobFields, ...]
    pauses: Annotated[tuple[PauseFields, ...], At("pauses", _pauses)]
    held: Annotated[tuple[HeldFields, ...], At("held", _held_instances)]


class AgentPauseDocument(Document):
    """End of the pause of an instance's jobs; null: the pause has ended."""

    instance: str
    until: Annotated[str | None, At("until", iso)]


class AgentRunDocument(Document):
    """An immediate run of a job: its exit code, and the file with its output."""

    job: Annotated[str, At("name", str)]
    exit_code: int
    log: str


class NotifiedDocument(Document):
    """The targets of a message, as far as known, and those that it did not reach."""

    targets: tuple[str, ...]
    failed: tuple[str, ...]
