"""The operations of subjects and their results. Each operation has one file in a folder that only root can use.

An operation continues when its caller disconnects. The caller can find it again by its id. If the helper dies, its
running operations are recorded as interrupted, because their outcome is unknown.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import files, run_context
from zsnapdb.base.errors import CommandError, ZsnapdbError
from zsnapdb.base.files import make_private
from zsnapdb.base.patterns import Moment, RunId, Sha256, Subject, is_same
from zsnapdb.base.run_context import Audience
from zsnapdb.jobs.base.clock_record import RemovalTime
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.serve.helper_messages import INTERRUPTED, FailureAnswer, ResultAnswer, failure_of, too_busy
from zsnapdb.serve.roles import Role, VerbKind, sees_all
from zsnapdb.serve.tokens import CredentialHolder
from zsnapdb.verbs.argument_patterns import Name

_KEPT = timedelta(days=1)
_MOST_OF_SUBJECT = 100
"""Maximum number of ended operations that are kept per subject."""
_MOST_RUNNING = 50
"""Maximum number of running operations of a subject."""
_MOST_RUNNING_OF_ALL = 200
"""Maximum number of running operations of all subjects. Each operation has a thread."""


class OperationRecord(BaseModel):
    """An operation, and the role with which its subject started it (older releases recorded no role).

    `most_bytes` is the number of bytes that a new clone may write; 0 means no limit. `ending` is the result, which can
    contain the login of a clone (None means the operation is running).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: RunId
    subject: Subject
    role: Role = Role.DEVELOPER
    verb: VerbKind
    clone: Name
    request: Sha256
    key: Sha256 | None = None
    most_bytes: Annotated[int, Field(ge=0)] = 0
    started: Moment
    finished: Moment | None = None
    ending: Annotated[ResultAnswer | FailureAnswer, Field(discriminator="kind")] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the recorded result is a failure."""
        return isinstance(self.ending, FailureAnswer) and self.ending.code != INTERRUPTED


@dataclass
class Operations:
    """The operations of this host. Only one helper uses this object at a time.

    `clock` returns the current time for deciding which operations are old; if it is None, `now` is used. If a request
    has the key of a forgotten operation, it starts the operation a second time.
    """

    folder: Path
    now: Callable[[], datetime]
    clock: Callable[[], RemovalTime] | None = None
    _known: dict[str, OperationRecord] = field(init=False, default_factory=dict)
    _cancels: dict[str, threading.Event] = field(init=False, default_factory=dict)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        make_private(self.folder)
        # An incomplete file of a killed helper can contain the login of a clone.
        files.remove_unfinished(self.folder)
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(ValidationError, OSError):
                record = OperationRecord.model_validate_json(file.read_bytes())
                if record.id == file.stem:
                    self._known[record.id] = record
        for record in [one for one in self._known.values() if one.ending is None]:
            self.end(record.id, _interrupted(record))
        self.forget_old()

    def begin(
        self, record: OperationRecord, work: Callable[[], ResultAnswer | FailureAnswer], cancel: threading.Event
    ) -> None:
        """Run the work in a thread and record its result.

        When this function returns, the record is durable. `cancel` ends the work early.

        Raises RefusedRequest if too many operations are running.
        """
        with self._changed:
            self._sweep(record.subject)
            running = [one.subject.casefold() for one in self._known.values() if one.ending is None]
            if (mine := running.count(record.subject.casefold())) >= _MOST_RUNNING:
                raise too_busy(f"{mine} operations of {record.subject} are running")
            if len(running) >= _MOST_RUNNING_OF_ALL:
                raise too_busy("this host already runs its maximum number of operations")
            self._store(record)
            self._cancels[record.id] = cancel
        threading.Thread(target=self._run, args=(record.id, work), name=record.id, daemon=True).start()

    def _run(self, operation: str, work: Callable[[], ResultAnswer | FailureAnswer]) -> None:
        try:
            ending = work()
        except Exception as error:  # any error must reach the callers that wait
            known = error if isinstance(error, ZsnapdbError) else ZsnapdbError("an unexpected error")
            print(f"operation {operation}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            ending = failure_of(Audience(audience_of(self._known[operation])).told(known))
        self.end(operation, ending)

    def end(self, operation: str, ending: ResultAnswer | FailureAnswer) -> None:
        """Record the result of the operation. Waiting callers get the result even if it cannot be written."""
        with self._changed:
            changed = self._known[operation].model_copy(update={"ending": ending, "finished": self.now()})
            self._known[operation] = changed
            self._cancels.pop(operation, None)
            with contextlib.suppress(OSError):
                self._store(changed)
            self._changed.notify_all()

    def cancel(self, operation: str) -> None:
        """Request that a running operation ends. Its result is recorded as usual."""
        with self._changed:
            asked = self._cancels.get(operation)
            if asked is not None:
                asked.set()

    def wait(self, operation: str, seconds: float) -> OperationRecord | None:
        """Wait at most `seconds` for the operation to end, and return it; None if it has been forgotten."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_under_way(operation), seconds)
            return self._known.get(operation)

    def settle(self, seconds: float) -> None:
        """Wait at most `seconds` until every operation has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._is_under_way(one) for one in self._known), seconds)

    def _is_under_way(self, operation: str) -> bool:
        known = self._known.get(operation)
        return known is not None and known.ending is None

    def find(self, operation: str) -> OperationRecord | None:
        """Return the operation with this id; None if it is unknown or forgotten."""
        with self._changed:
            self._forget_old()
            return self._known.get(operation)

    def of_key(self, subject: str, key: str) -> OperationRecord | None:
        """Return the subject's operation whose idempotency key has this hash.

        The result is None if no operation has the key. Failed operations are skipped, so their keys may be used again.
        An interrupted operation is returned, because its outcome is unknown.
        """
        with self._changed:
            self._forget_old()
            begun = [one for one in self._known.values() if (one.subject, one.key) == (subject, key)]
            return next((one for one in begun if not one.has_failed), None)

    def under_way(self, verb: VerbKind) -> Sequence[OperationRecord]:
        """Return all running operations with this verb."""
        with self._changed:
            return [one for one in self._known.values() if (one.verb, one.ending) == (verb, None)]

    def _store(self, record: OperationRecord) -> None:
        files.replace(self.folder / f"{record.id}.json", record.model_dump_json().encode())
        self._known[record.id] = record

    def forget_old(self) -> None:
        """Forget operations that ended more than a day ago, and their files, unless another thread is changing them."""
        if self._changed.acquire(blocking=False):
            try:
                self._forget_old()
            finally:
                self._changed.release()

    def _forget_old(self) -> None:
        time = self.clock() if self.clock is not None else RemovalTime(self.now(), self.now())
        ended = [(one, one.finished) for one in self._known.values() if one.finished is not None]
        self._forget([one.id for one, finished in ended if finished < time.at - _KEPT])
        for one, finished in ended:
            if time.is_from_future(finished):
                # The clock was ahead when the operation ended, so its age begins now.
                with contextlib.suppress(OSError):
                    self._store(one.model_copy(update={"finished": time.latest}))

    def _sweep(self, subject: str) -> None:
        """Forget operations that ended long ago. If the subject has too many operations, forget its oldest."""
        self._forget_old()
        known = [one for one in self._known.values() if one.finished is not None]
        # Operations are listed in the order in which they started. Their start times are not comparable if the clock
        # was changed.
        mine = [one.id for one in known if is_same(one.subject, subject)]
        self._forget(mine[: max(0, len(mine) - _MOST_OF_SUBJECT)])

    def _forget(self, operations: Sequence[str]) -> None:
        for operation in operations:
            # If a file cannot be removed, the next helper reads the file and forgets its operation.
            with contextlib.suppress(OSError):
                (self.folder / f"{operation}.json").unlink(missing_ok=True)
            del self._known[operation]


def audience_of(begun: OperationRecord | CredentialHolder) -> str:
    """Return the owner whose clones an answer may mention; "" if the role sees all clones."""
    return "" if sees_all(begun.role) else owner_text(begun.subject)


def new_id() -> str:
    """Return the id of a new operation. The run and the evidence of the operation get the same id."""
    return run_context.new_run_id()


def _interrupted(record: OperationRecord) -> FailureAnswer:
    return FailureAnswer(
        code=INTERRUPTED,
        message=f"the helper ended while {record.verb} of {record.clone} was running",
        hint="check the clone, and repeat the request with another key; `zsnapdb reap` removes incomplete clones",
        exit_code=CommandError.exit_code,
    )
