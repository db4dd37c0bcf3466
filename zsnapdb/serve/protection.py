"""What holders of tokens may know about the protection of instances, of what commands of zsnapdb tell root.

Each document is read as untrusted, and only the fields of these models are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from zsnapdb.base import run_id
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.serve.children import CommandCall, RunCommand
from zsnapdb.serve.messages import FailureAnswer, RefusedRequest, ResultAnswer
from zsnapdb.serve.verbs import InstancePointsVerb, ListDrillsVerb, ListEvidenceVerb, ListObjectivesVerb, ProtectionRead

_SECONDS = 25.0
"""The longest that such a command may take: two of them, and their turns, are shorter than the patience of the web."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class PointsRange(_Part):
    """Every time from `from` to `to` can be given as `at`, and each of the backups as `from`."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    backups: tuple[str, ...]


class PointsGap(_Part):
    """A time whose states are lost, and why."""

    begin: Annotated[str, Field(alias="from")]
    to: str
    reason: str


class UsableSet(_Part):
    """A snapshot set that lies on this host: a clone of it needs nothing of a repository."""

    id: Annotated[str, Field(validation_alias="backup_id")]
    state: str


class PointsDocument(_Part):
    """The states of an instance of which clones can be made, as they were known at `at`."""

    instance: str
    at: str
    recoverable: tuple[PointsRange, ...]
    gaps: tuple[PointsGap, ...]
    sets: tuple[UsableSet, ...] = ()


class _Sets(_Part):
    sets: tuple[UsableSet, ...]


class ToldObjective(_Part):
    """An objective, and whether it is met. `since` (UTC): since when it is not."""

    objective: str
    subject: str
    verdict: str
    reason: str
    since: str | None
    seconds: float | None
    limit_seconds: float | None


class InstanceObjectives(_Part):
    """The objectives of an instance. `error` is the code of what prevents knowing them."""

    instance: str
    verdict: str | None = None
    objectives: tuple[ToldObjective, ...] = ()
    error: str | None = None


class ObjectivesDocument(_Part):
    """The objectives of each instance."""

    instances: tuple[InstanceObjectives, ...]


class _ErrorCode(_Part):
    code: str


class _State(_Part):
    instance: str
    status: InstanceObjectives | None
    error: _ErrorCode | None


class _States(_Part):
    instances: tuple[_State, ...]


class ToldDrill(_Part):
    """A drill: what was restored, when, and how it went."""

    drill_id: str
    backup_id: str
    requested: str
    started: str
    finished: str
    seconds: float
    outcome: str


class ToldDrills(_Part):
    """The newest drills of an instance, oldest first."""

    drills: tuple[ToldDrill, ...]


class EvidenceDocument(_Part):
    """Records of an evidence log by number. `next` is what `after` asks for the later ones (null: there are none)."""

    instance: str
    records: tuple[Mapping[str, JsonValue], ...]
    not_believed: tuple[Mapping[str, JsonValue], ...]
    next: int | None


_M = TypeVar("_M", bound=_Part)


@dataclass(frozen=True)
class ProtectionReader:
    """Asks commands that change nothing. `run` runs them."""

    run: RunCommand

    def read(self, verb: ProtectionRead, subject: str) -> ResultAnswer:
        """Return what the verb asks for. RefusedRequest has the error of the command."""
        match verb:
            case InstancePointsVerb():
                return _told(self._points(verb.name, subject))
            case ListObjectivesVerb():
                states = self._document(_States, ("status", "--all"), subject)
                return _told(ObjectivesDocument(instances=tuple(_objectives(one) for one in states.instances)))
            case ListDrillsVerb():
                words = ("drills", verb.instance, f"--most={verb.limit}")
                return _told(self._document(ToldDrills, words, subject))
            case ListEvidenceVerb():
                page = ("report", "records", verb.instance, f"--after={verb.after}", f"--most={verb.limit}")
                return _told(self._document(EvidenceDocument, page, subject))

    def _points(self, instance: str, subject: str) -> PointsDocument:
        here = self._document(_Sets, ("list", instance, "--local"), subject)
        points = self._document(PointsDocument, ("status", instance), subject)
        return points.model_copy(update={"sets": here.sets})

    def _document(self, model: type[_M], words: Sequence[str], subject: str) -> _M:
        return narrowed(model, self.told(words, subject))

    def told(self, words: Sequence[str], subject: str) -> ResultAnswer:
        """Return the document of a command, whatever its exit code says of it. RefusedRequest if it is an error."""
        answer = self.run(CommandCall((*words, "--json"), subject, run_id.new(), _SECONDS, judges=True))
        if isinstance(answer, FailureAnswer):
            raise RefusedRequest(answer)
        return answer


def narrowed(model: type[_M], answer: ResultAnswer) -> _M:
    """Return the fields of the document that the model knows. ConsistencyError if it has another form."""
    try:
        return model.model_validate(answer.document)
    except ValidationError as error:
        raise ConsistencyError("a command printed another document than is known", hint="restart the helper") from error


def _objectives(state: _State) -> InstanceObjectives:
    if state.status is not None:
        return state.status
    return InstanceObjectives(instance=state.instance, error=state.error.code if state.error is not None else None)


def _told(document: _Part) -> ResultAnswer:
    fields: dict[str, Any] = document.model_dump(mode="json", by_alias=True)
    return ResultAnswer(document=fields)
