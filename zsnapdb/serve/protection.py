"""Reports about the protection of instances for holders of tokens. Commands that run as root create the reports.

Each document is read as untrusted, and only the fields that the models declare are passed on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from zsnapdb.base import run_context
from zsnapdb.base.errors import ConsistencyError, ZsnapdbError
from zsnapdb.base.program_start import Stop
from zsnapdb.documents import api
from zsnapdb.documents.base import Document
from zsnapdb.jobs.clone.expected_clone import ExpectedClone
from zsnapdb.serve.command_processes import CommandCall, RunCommand
from zsnapdb.serve.helper_messages import FailureAnswer, RefusedRequest, ResultAnswer
from zsnapdb.verbs import requests as verbs

Read = Callable[[], ResultAnswer]


@dataclass
class _Recent:
    """An answer (None if not read yet), the time when its reading started, and the time of the last request.

    Times are monotonic.
    """

    read: Read
    asked: float
    answer: ResultAnswer | None = None
    began: float = 0.0
    tried: float = 0.0
    """The time when the newest reading started, even if the reading failed."""
    readings: int = 0
    failure: RefusedRequest | ZsnapdbError | OSError | None = None
    """The error of the newest reading; None if it succeeded."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class RecentAnswers:
    """A cache of answers, keyed by request. Times are in seconds.

    - An answer older than `oldest` is never returned. All requests wait for one new reading instead.
    - An answer older than `fresh` is returned, and then read again in the background.
    - If an answer was requested within the last `warm` seconds, it is read again every `every` seconds.
    - If a reading fails, all waiting requests get the error; later requests start a new reading.
    """

    fresh: float = 10.0
    oldest: float = 60.0
    every: float = 30.0
    warm: float = 900.0
    now: Callable[[], float] = time.monotonic
    _known: dict[str, _Recent] = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def answer(self, asked: str, read: Read) -> ResultAnswer:
        """Return the answer to the request. Raises the errors of `read`."""
        with self._lock:
            known = self._known.setdefault(asked, _Recent(read, self.now()))
            known.read, known.asked = read, self.now()
            before = known.readings
        age = self._age(known)
        if known.answer is not None and age <= self.oldest:
            if age > self.fresh and self._may_try(known, self.fresh):
                threading.Thread(target=self._refresh, args=(known, self.fresh), daemon=True).start()
            return known.answer
        with known.lock:
            # While this thread waited for the lock, another thread may have read the answer or failed to read it.
            if known.answer is None or self._age(known) > self.oldest:
                if known.failure is not None and known.readings > before:
                    raise known.failure
                self._read(known)
            assert known.answer is not None
            return known.answer

    def keep_warm(self, stop: Stop) -> None:
        """Until the stop is requested, refresh recently requested answers, and delete all other answers."""
        while not stop.is_set():
            time.sleep(min(1.0, self.every))
            self.refresh_due()

    def refresh_due(self) -> None:
        """Refresh the answers that are due, and delete answers without a recent request."""
        with self._lock:
            for asked in [one for one, known in self._known.items() if self.now() - known.asked > self.warm]:
                del self._known[asked]
            known_now = list(self._known.values())
        for known in known_now:
            self._refresh(known, self.every)

    def _age(self, known: _Recent) -> float:
        return self.now() - known.began

    def _may_try(self, known: _Recent, seconds: float) -> bool:
        """Return whether the newest reading began more than `seconds` ago, even if that reading failed."""
        return self.now() - known.tried > seconds

    def _refresh(self, known: _Recent, than: float) -> None:
        """Read the answer again if it is older than `than` seconds, unless another thread is already reading it."""
        if known.lock.acquire(blocking=False):
            try:
                # The error is reported to the next request for which the answer is too old.
                with contextlib.suppress(RefusedRequest, ZsnapdbError, OSError):
                    if self._age(known) > than and self._may_try(known, than):
                        self._read(known)
            finally:
                known.lock.release()

    def _read(self, known: _Recent) -> None:
        began = known.tried = self.now()
        try:
            known.answer, known.began, known.failure = known.read(), began, None
        except (RefusedRequest, ZsnapdbError, OSError) as error:
            known.failure = error
            raise
        finally:
            known.readings += 1


_SHARED_AUDIENCE = "all subjects"
"""The owner whose clones a shared answer may mention. No clone has this owner, because no subject contains a space."""
_SECONDS = 25.0
"""Timeout in seconds of a command that reads facts for an answer.

The web process waits longer than two such commands take, including their waiting times.
"""


class _Sets(Document):
    sets: tuple[api.UsableSet, ...]


class _ErrorCode(Document):
    code: str


class _State(Document):
    instance: str
    status: api.InstanceObjectives | None
    error: _ErrorCode | None


class _States(Document):
    instances: tuple[_State, ...]


_M = TypeVar("_M", bound=Document)


@dataclass(frozen=True)
class ProtectionReader:
    """Runs read-only commands with `run`.

    `recent` caches objectives and points for some seconds; if it is None, each request reads them. Objectives and
    points are the same for all subjects that may see them.
    """

    run: RunCommand
    recent: RecentAnswers | None = None

    def read(self, verb: verbs.ProtectionRead, subject: str) -> ResultAnswer:
        """Return the answer to the verb. If the command fails, raises RefusedRequest with its error."""
        if self.recent is not None and isinstance(verb, verbs.InstancePointsVerb | verbs.ListObjectivesVerb):
            return self.recent.answer(verb.model_dump_json(), lambda: self._read(verb, subject, _SHARED_AUDIENCE))
        return self._read(verb, subject, subject)

    def _read(self, verb: verbs.ProtectionRead, subject: str, audience: str) -> ResultAnswer:
        match verb:
            case verbs.InstancePointsVerb():
                return _answer(self._points(verb.name, subject, audience))
            case verbs.ListObjectivesVerb():
                states = self._document(_States, ("status", "--all"), subject, audience)
                return _answer(api.ObjectivesDocument(instances=tuple(_objectives(one) for one in states.instances)))
            case verbs.ListDrillsVerb():
                words = ("drills", verb.instance, f"--most={verb.limit}")
                return _answer(self._document(api.PublicDrills, words, subject, audience))
            case verbs.ListEvidenceVerb():
                page = ("report", "records", verb.instance, f"--after={verb.after}", f"--most={verb.limit}")
                return _answer(self._document(api.EvidenceDocument, page, subject, audience))
            case _:
                raise NotImplementedError(verb.kind)

    def _points(self, instance: str, subject: str, audience: str) -> api.PointsDocument:
        here = self._document(_Sets, ("list", instance, "--local"), subject, audience)
        points = self._document(api.PointsDocument, ("status", instance), subject, audience)
        return points.model_copy(update={"sets": here.sets})

    def _document(self, model: type[_M], words: Sequence[str], subject: str, audience: str) -> _M:
        return narrowed(model, self.told(words, subject, audience=audience))

    def told(
        self, words: Sequence[str], subject: str, meant: ExpectedClone | None = None, *, audience: str
    ) -> ResultAnswer:
        """Return the document of a command, even if its exit code is a verdict.

        Raises RefusedRequest if the exit code reports an error. `meant` is the clone that the command uses (None means
        the command uses no clone). `audience` is the owner whose clones an error may mention.
        """
        call = CommandCall(
            (*words, "--json"), subject, run_context.new_run_id(), _SECONDS, judges=True, meant=meant, audience=audience
        )
        answer = self.run(call)
        if isinstance(answer, FailureAnswer):
            raise RefusedRequest(answer)
        return answer


def narrowed(model: type[_M], answer: ResultAnswer) -> _M:
    """Return the fields of a document that the model declares.

    Raises ConsistencyError if the document has another format.
    """
    try:
        return model.model_validate(answer.document)
    except ValidationError as error:
        raise ConsistencyError("a command printed an unknown document", hint="restart the helper") from error


def _objectives(state: _State) -> api.InstanceObjectives:
    if state.status is not None:
        return state.status
    return api.InstanceObjectives(instance=state.instance, error=state.error.code if state.error is not None else None)


def _answer(document: Document) -> ResultAnswer:
    fields: dict[str, Any] = document.model_dump(mode="json", by_alias=True)
    return ResultAnswer(document=fields)
