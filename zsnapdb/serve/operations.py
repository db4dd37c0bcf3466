"""What subjects asked for and what became of it: a file for each operation, in a folder of root's.

An operation goes on when whoever asked has gone, and is found again by its id. If the helper dies, what it was doing
counts as interrupted: nobody knows how far it came.
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

from zsnapdb.base import run_id, whole_file
from zsnapdb.base.audience import Audience
from zsnapdb.base.errors import CommandError, ZsnapdbError
from zsnapdb.base.patterns import Moment, RunId, Sha256
from zsnapdb.base.subject import Subject
from zsnapdb.jobs.base.private_folder import make_private
from zsnapdb.jobs.copies.properties import owner_text
from zsnapdb.serve.messages import INTERRUPTED, FailureAnswer, ResultAnswer, failure_of, too_busy
from zsnapdb.serve.roles import Role, VerbKind, sees_all
from zsnapdb.serve.tokens import CredentialHolder
from zsnapdb.verbs.values import Name

_KEPT = timedelta(days=1)
_MOST_OF_SUBJECT = 100
"""How many ended operations of a subject are kept."""
_MOST_RUNNING = 50
"""How many operations of a subject may be under way."""
_MOST_RUNNING_OF_ALL = 200
"""How many may be of all subjects together: each has a thread that waits for its turn."""


class OperationRecord(BaseModel):
    """An operation, and as what its subject began it (an older release did not say so).

    `most_bytes` is how much a clone that is being made may write (0: there is no limit of that).
    `ending` is how it ended (None: it is under way). It can have the login of a clone.
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
        """Whether it is known that it failed."""
        return isinstance(self.ending, FailureAnswer) and self.ending.code != INTERRUPTED


@dataclass
class Operations:
    """The operations of this host. One helper has them at a time.

    `removal_time` is the time by which old ones are forgotten (None: `now`): their keys would begin them again.
    """

    folder: Path
    now: Callable[[], datetime]
    removal_time: Callable[[], datetime] | None = None
    _known: dict[str, OperationRecord] = field(init=False, default_factory=dict)
    _cancels: dict[str, threading.Event] = field(init=False, default_factory=dict)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def __post_init__(self) -> None:
        make_private(self.folder)
        # What a killed helper was writing can have the login of a clone.
        whole_file.remove_unfinished(self.folder)
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
        """Do the work in a thread and keep its ending. The record is durable on return. `cancel` ends the work early.

        RefusedRequest if too many operations of the subject are under way.
        """
        with self._changed:
            self._sweep(record.subject)
            running = [one.subject.casefold() for one in self._known.values() if one.ending is None]
            if (mine := running.count(record.subject.casefold())) >= _MOST_RUNNING:
                raise too_busy(f"{mine} operations of {record.subject} are under way")
            if len(running) >= _MOST_RUNNING_OF_ALL:
                raise too_busy("as many operations are under way as this host begins at once")
            self._store(record)
            self._cancels[record.id] = cancel
        threading.Thread(target=self._run, args=(record.id, work), name=record.id, daemon=True).start()

    def _run(self, operation: str, work: Callable[[], ResultAnswer | FailureAnswer]) -> None:
        try:
            ending = work()
        except Exception as error:  # whoever waits is told that it failed, whatever it is
            known = error if isinstance(error, ZsnapdbError) else ZsnapdbError("an unexpected error")
            print(f"operation {operation}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            ending = failure_of(Audience(audience_of(self._known[operation])).told(known))
        self.end(operation, ending)

    def end(self, operation: str, ending: ResultAnswer | FailureAnswer) -> None:
        """Keep how the operation ended. Whoever waits for it is told, also if the disk refuses."""
        with self._changed:
            changed = self._known[operation].model_copy(update={"ending": ending, "finished": self.now()})
            self._known[operation] = changed
            self._cancels.pop(operation, None)
            with contextlib.suppress(OSError):
                self._store(changed)
            self._changed.notify_all()

    def cancel(self, operation: str) -> None:
        """Ask the work of the operation to end, if it is under way. How it ended is kept as always."""
        with self._changed:
            asked = self._cancels.get(operation)
            if asked is not None:
                asked.set()

    def wait(self, operation: str, seconds: float) -> OperationRecord | None:
        """Return the operation as it is when it has ended, or after so many seconds; None if it is forgotten."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_under_way(operation), seconds)
            return self._known.get(operation)

    def settle(self, seconds: float) -> None:
        """Wait until every operation has ended, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not any(self._is_under_way(one) for one in self._known), seconds)

    def _is_under_way(self, operation: str) -> bool:
        known = self._known.get(operation)
        return known is not None and known.ending is None

    def find(self, operation: str) -> OperationRecord | None:
        """Return the operation of that id; None if there is none, or none any more."""
        with self._changed:
            self._forget_old()
            return self._known.get(operation)

    def of_key(self, subject: str, key: str) -> OperationRecord | None:
        """Return what the subject began with the key of that hash; None if nothing.

        What failed may be tried again with its key. Of what was interrupted nobody knows whether it failed.
        """
        with self._changed:
            self._forget_old()
            begun = [one for one in self._known.values() if (one.subject, one.key) == (subject, key)]
            return next((one for one in begun if not one.has_failed), None)

    def under_way(self, verb: VerbKind) -> Sequence[OperationRecord]:
        """Return the operations of the verb that have not ended, whoever began them."""
        with self._changed:
            return [one for one in self._known.values() if (one.verb, one.ending) == (verb, None)]

    def _store(self, record: OperationRecord) -> None:
        whole_file.replace(self.folder / f"{record.id}.json", record.model_dump_json().encode())
        self._known[record.id] = record

    def forget_old(self) -> None:
        """Forget what ended more than a day ago, on the disk too, unless the operations are being changed just now."""
        if self._changed.acquire(blocking=False):
            try:
                self._forget_old()
            finally:
                self._changed.release()

    def _forget_old(self) -> None:
        oldest = (self.removal_time or self.now)() - _KEPT
        self._forget([one.id for one in self._known.values() if one.finished is not None and one.finished < oldest])

    def _sweep(self, subject: str) -> None:
        """Forget what ended long ago, and the oldest of the subject if there are too many."""
        self._forget_old()
        mine = [one for one in self._known.values() if one.subject == subject and one.finished is not None]
        newest = sorted(mine, key=lambda one: one.started, reverse=True)
        self._forget([one.id for one in newest[_MOST_OF_SUBJECT:]])

    def _forget(self, operations: Sequence[str]) -> None:
        for operation in operations:
            # A file that the disk keeps is read, and forgotten, by the next helper.
            with contextlib.suppress(OSError):
                (self.folder / f"{operation}.json").unlink(missing_ok=True)
            del self._known[operation]


def audience_of(begun: OperationRecord | CredentialHolder) -> str:
    """Return whose clones an answer may name, as an owner of clones; "" if the role sees those of everybody."""
    return "" if sees_all(begun.role) else owner_text(begun.subject)


def new_id() -> str:
    """Return the id of a new operation: that of its run, so its evidence has the same."""
    return run_id.new()


def _interrupted(record: OperationRecord) -> FailureAnswer:
    return FailureAnswer(
        code=INTERRUPTED,
        message=f"the helper ended while {record.verb} of {record.clone} was under way",
        hint="check the clone, and repeat the request with another key; `zsnapdb reap` removes incomplete clones",
        exit_code=CommandError.exit_code,
    )
