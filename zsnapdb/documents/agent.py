"""The documents of the agent: its jobs, a job that was run at once, a pause, and whom notifications reached."""

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


def _held(held: Mapping[str, str]) -> list[dict[str, object]]:
    return rows("instance", "reason")(sorted(held.items()))


class AgentJobFields(Document):
    """A job of the agent. `instance` is null if the job is of the host; `next` if it runs all the time."""

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
    """An instance of which no job begins now: its server is being replaced and is down."""

    instance: str
    reason: str


class AgentDocument(Document):
    """The jobs of the agent. `difference`: how the running agent's configuration differs from the file."""

    is_running: bool
    difference: Annotated[str | None, At("difference", or_null)]
    jobs: tuple[AgentJobFields, ...]
    pauses: Annotated[tuple[PauseFields, ...], At("pauses", _pauses)]
    held: Annotated[tuple[HeldFields, ...], At("held", _held)]


class AgentPauseDocument(Document):
    """Until when no job of an instance begins; null: the pause has ended."""

    instance: str
    until: Annotated[str | None, At("until", iso)]


class AgentRunDocument(Document):
    """A job of the agent that was run at once: its exit code, and the file with what it printed."""

    job: Annotated[str, At("name", str)]
    exit_code: int
    log: str


class NotifiedDocument(Document):
    """The targets that a message was sent to, as far as that is known, and those that it did not reach."""

    targets: tuple[str, ...]
    failed: tuple[str, ...]
