"""What holders of tokens may know about the protection of instances, of what commands of zsnapdb tell root.

Each document is read as untrusted, and only the fields of these models are passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from zsnapdb.base import run_id
from zsnapdb.base.errors import ConsistencyError
from zsnapdb.jobs.clone.meant import MeantClone
from zsnapdb.serve.children import CommandCall, RunCommand
from zsnapdb.serve.messages import FailureAnswer, RefusedRequest, ResultAnswer
from zsnapdb.serve.protection_documents import (
    EvidenceDocument,
    InstanceObjectives,
    ObjectivesDocument,
    PointsDocument,
    ToldDrills,
    ToldPart,
    UsableSet,
)
from zsnapdb.serve.recent_answers import RecentAnswers
from zsnapdb.serve.verbs import InstancePointsVerb, ListDrillsVerb, ListEvidenceVerb, ListObjectivesVerb, ProtectionRead

_SECONDS = 25.0
"""The longest that such a command may take: two of them, and their turns, are shorter than the patience of the web."""


class _Sets(ToldPart):
    sets: tuple[UsableSet, ...]


class _ErrorCode(ToldPart):
    code: str


class _State(ToldPart):
    instance: str
    status: InstanceObjectives | None
    error: _ErrorCode | None


class _States(ToldPart):
    instances: tuple[_State, ...]


_M = TypeVar("_M", bound=ToldPart)


@dataclass(frozen=True)
class ProtectionReader:
    """Asks commands that change nothing. `run` runs them.

    `recent` keeps what was read of objectives and points for some seconds (None: each is read anew): it is the same for
    everybody who may see it.
    """

    run: RunCommand
    recent: RecentAnswers | None = None

    def read(self, verb: ProtectionRead, subject: str) -> ResultAnswer:
        """Return what the verb asks for. RefusedRequest has the error of the command."""
        if self.recent is not None and isinstance(verb, InstancePointsVerb | ListObjectivesVerb):
            return self.recent.answer(verb.model_dump_json(), lambda: self._read(verb, subject))
        return self._read(verb, subject)

    def _read(self, verb: ProtectionRead, subject: str) -> ResultAnswer:
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
        # What is kept for all who may see it names nothing of anybody.
        return narrowed(model, self.told(words, subject, audience=subject))

    def told(
        self, words: Sequence[str], subject: str, meant: MeantClone | None = None, *, audience: str
    ) -> ResultAnswer:
        """Return the document of a command, whatever its exit code says of it. RefusedRequest if it is an error.

        `meant` is the clone that it is about (None: it is about none), `audience` whose clones an error may name.
        """
        call = CommandCall(
            (*words, "--json"), subject, run_id.new(), _SECONDS, judges=True, meant=meant, audience=audience
        )
        answer = self.run(call)
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


def _told(document: ToldPart) -> ResultAnswer:
    fields: dict[str, Any] = document.model_dump(mode="json", by_alias=True)
    return ResultAnswer(document=fields)
