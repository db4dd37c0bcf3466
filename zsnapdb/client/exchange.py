"""What is asked of the API, and what its answers mean: as generators, without any input and output.

A generator yields requests and pauses. Whoever drives it sends each request, waits as long as a pause says, and gives
back the answer. So one logic serves programs with threads and programs with asyncio.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypedDict, TypeVar
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from zsnapdb.client.errors import CloneCommandError
from zsnapdb.client.models import (
    EVERY_ADDRESS,
    BranchCommit,
    BranchLog,
    CloneChange,
    CloneCommit,
    ClonePoints,
    CloneReset,
    D,
    KnownBranches,
    KnownClone,
    KnownClones,
    KnownInstance,
    KnownInstances,
    LogLines,
    MadeClone,
    PendingOperation,
    Problem,
    ReachableClone,
    StateDifference,
    SwitchedClone,
    parsed,
    reachable,
)

SECONDS = 3600.0
"""The longest that is waited for one thing: a clone of a backup that must be received first takes as long as that."""
_ATTEMPTS = 6
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
_MOST_RETRY_AFTER = 30.0
_ACCEPTED, _LEAST_ERROR, _NOT_FOUND, _UNAVAILABLE = 202, 300, 404, 503
_WHO = "the API"


@dataclass(frozen=True)
class ApiRequest:
    """A request. A second one does nothing that the first has not done: it reads, or has a key."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ApiPause:
    """A time in seconds before the next request."""

    seconds: float


@dataclass(frozen=True)
class ApiAnswer:
    """The answer to a request. `retry_after` (seconds) is None if it does not say it."""

    status: int
    body: bytes = field(repr=False)
    retry_after: float | None = None


@dataclass(frozen=True)
class LostAnswer:
    """There was no answer, and why. What was asked for may have been done."""

    reason: str


T = TypeVar("T")
Exchange: TypeAlias = Generator[ApiRequest | ApiPause, ApiAnswer | LostAnswer | None, T]
AnyClone = str | KnownClone | ReachableClone


class CloneOptions(TypedDict, total=False):
    """What a new clone may be asked for beside its instance and its name, see `WantedClone`."""

    at: str | None
    source: str | None
    ttl: str | None
    profile: str | None
    mask: bool
    heartbeat: float | None


@dataclass(frozen=True)
class WantedClone:
    """A new clone: of the newest set, as of the point `at`, or of the set or commit `source`.

    With `heartbeat` (seconds) it goes soon after nobody has said for so long that its holder is there.
    """

    instance: str
    name: str | None = None
    at: str | None = None
    source: str | None = None
    ttl: str | None = None
    profile: str | None = None
    mask: bool = False
    heartbeat: float | None = None

    def body(self) -> dict[str, object]:
        """Return the body of the request."""
        given = {"name": self.name, "at": self.at, "from": self.source, "ttl": self.ttl, "profile": self.profile}
        chosen = {key: value for key, value in given.items() if value is not None}
        beats = {"heartbeat": f"{self.heartbeat:g}s"} if self.heartbeat is not None else {}
        return {"instance": self.instance, **chosen, **beats, **({"mask": True} if self.mask else {})}


def new_key() -> str:
    """Return a key by which the same request is known when it comes again."""
    return secrets.token_urlsafe(18)


def create(wanted: WantedClone, key: str, host: str) -> Exchange[ReachableClone]:
    """Make a clone. A lost answer is asked for again by the same key, so it makes no second clone.

    `host` is where a clone is reached that listens on every address.
    """
    made = yield from _document(MadeClone, _creation(wanted, key))
    address = made.clone.bind_address
    return reachable(made, host if address in EVERY_ADDRESS else address)


def take_back(wanted: WantedClone, key: str) -> Exchange[None]:
    """End the making of the clone that was asked for by this key, and destroy the clone if it is made already."""
    answer = yield from _answered(_creation(wanted, key))
    if answer.status == _ACCEPTED:
        where = _operation(parsed(PendingOperation, answer.body, _WHO).operation)
        try:
            yield from _followed(ApiRequest("DELETE", where))
        except CloneCommandError:
            # It had ended: with a clone, or with an error.
            answer = yield from _answered(ApiRequest("GET", where))
    if answer.status < _LEAST_ERROR and answer.status != _ACCEPTED:
        yield from destroy(parsed(CloneChange, answer.body, _WHO).clone)


def _creation(wanted: WantedClone, key: str) -> ApiRequest:
    return _keyed("POST", "/clones", wanted.body(), key)


def _keyed(method: str, path: str, body: Mapping[str, object] | None = None, key: str | None = None) -> ApiRequest:
    """Return a request that changes something, by this key (None: one of its own): it is done once."""
    return ApiRequest(method, path, body, {"Idempotency-Key": key or new_key()})


def instances() -> Exchange[tuple[KnownInstance, ...]]:
    """List the instances that clones can be made of."""
    return (yield from _document(KnownInstances, ApiRequest("GET", "/instances"))).instances


def points(instance: str) -> Exchange[ClonePoints]:
    """Say of which states clones can be made."""
    return (yield from _document(ClonePoints, ApiRequest("GET", f"/instances/{quote(instance, safe='')}/points")))


def clones() -> Exchange[tuple[KnownClone, ...]]:
    """List the clones that one may see."""
    return (yield from _document(KnownClones, ApiRequest("GET", "/clones"))).clones


def get(clone: AnyClone) -> Exchange[KnownClone]:
    """Show a clone."""
    return (yield from _document(CloneChange, ApiRequest("GET", _path(clone)))).clone


def reset(clone: AnyClone) -> Exchange[int | None]:
    """Give a clone its first data again. Return how many changes of rows were undone (None: it was replaced)."""
    return (yield from _document(CloneReset, _keyed("POST", _path(clone, "/reset")))).undone


def extend(clone: AnyClone, ttl: str | None) -> Exchange[KnownClone]:
    """Extend the lease of a clone."""
    return (yield from _changed(clone, "/extend", {"ttl": ttl} if ttl is not None else {}))


def protect(clone: AnyClone, duration: str) -> Exchange[KnownClone]:
    """Keep a clone from `zsnapdb reap` for some time."""
    return (yield from _changed(clone, "/protect", {"for": duration}))


def unprotect(clone: AnyClone) -> Exchange[KnownClone]:
    """End the protection of a clone."""
    return (yield from _changed(clone, "/unprotect"))


def _changed(clone: AnyClone, below: str, body: Mapping[str, object] | None = None) -> Exchange[KnownClone]:
    return (yield from _document(CloneChange, _keyed("POST", _path(clone, below), body))).clone


def commit(clone: AnyClone, message: str) -> Exchange[CloneCommit]:
    """Keep the present state of a clone."""
    return (yield from _document(CloneCommit, _keyed("POST", _path(clone, "/commit"), {"message": message})))


def branches(clone: AnyClone) -> Exchange[KnownBranches]:
    """List the branches of a clone."""
    return (yield from _document(KnownBranches, ApiRequest("GET", _path(clone, "/branches"))))


def create_branch(clone: AnyClone, branch: str, start: str | None) -> Exchange[KnownBranches]:
    """Begin a branch of a clone, at a branch or commit (None: at its present state)."""
    body = {"branch": branch, **({"from": start} if start is not None else {})}
    return (yield from _document(KnownBranches, _keyed("POST", _path(clone, "/branches"), body)))


def switch_branch(clone: AnyClone, branch: str) -> Exchange[SwitchedClone]:
    """Give a clone the newest commit of another branch."""
    return (yield from _document(SwitchedClone, _keyed("POST", _path(clone, "/switch"), {"branch": branch})))


def delete_branch(clone: AnyClone, branch: str) -> Exchange[KnownBranches]:
    """Forget a branch of a clone."""
    path = _path(clone, f"/branches?{urlencode({'branch': branch})}")
    return (yield from _document(KnownBranches, _keyed("DELETE", path)))


def commits(clone: AnyClone, state: str | None) -> Exchange[tuple[BranchCommit, ...]]:
    """List the commits that lead to a branch or a commit of a clone, newest first."""
    path = _path(clone, f"/commits?{urlencode({'of': state})}" if state is not None else "/commits")
    return (yield from _document(BranchLog, ApiRequest("GET", path))).commits


def diff(clone: AnyClone, before: str, after: str, limit: int) -> Exchange[StateDifference]:
    """Compare two branches or commits of a clone."""
    body = {"before": before, "after": after, "limit": limit}
    return (yield from _document(StateDifference, _keyed("POST", _path(clone, "/diff"), body)))


def logs(clone: AnyClone, lines: int) -> Exchange[tuple[str, ...]]:
    """Return the last lines of the error log of a clone's server. Others chose their text."""
    path = _path(clone, f"/logs?{urlencode({'lines': lines})}")
    return (yield from _document(LogLines, ApiRequest("GET", path))).lines


def beat(clone: AnyClone) -> Exchange[None]:
    """Say that the holder of a clone is there. It is tried once: another beat comes soon."""
    answer = yield ApiRequest("POST", _path(clone, "/heartbeat"))
    if not isinstance(answer, ApiAnswer):
        raise CloneCommandError(answer.reason if answer is not None else "no answer", exit_code=6, code="unreachable")
    if answer.status >= _LEAST_ERROR:
        raise _error(answer)


def destroy(clone: AnyClone) -> Exchange[None]:
    """Destroy a clone. One that is gone is no error."""
    try:
        yield from _followed(_keyed("DELETE", _path(clone)))
    except CloneCommandError as error:
        if error.status != _NOT_FOUND:
            raise


def _path(clone: AnyClone, below: str = "") -> str:
    name = clone if isinstance(clone, str) else clone.id
    return f"/clones/{quote(name, safe='')}{below}"


def _operation(operation: str) -> str:
    return f"/operations/{quote(operation, safe='')}"


def _document(model: type[D], request: ApiRequest) -> Exchange[D]:
    return parsed(model, (yield from _followed(request)), _WHO)


def _followed(request: ApiRequest) -> Exchange[bytes]:
    """Return the document of the request, after the end of its operation if it takes longer."""
    deadline, pause = time.monotonic() + SECONDS, _FIRST_PAUSE
    answer = yield from _answered(request)
    operation = ""
    while answer.status == _ACCEPTED:
        if not operation:
            operation = parsed(PendingOperation, answer.body, _WHO).operation
        if time.monotonic() >= deadline:
            raise CloneCommandError(
                f"operation {operation} is still under way after {SECONDS:g} s", "look at the clone later"
            )
        yield ApiPause(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        answer = yield from _answered(ApiRequest("GET", _operation(operation)))
    if answer.status >= _LEAST_ERROR:
        raise _error(answer)
    return answer.body


def _answered(request: ApiRequest) -> Exchange[ApiAnswer]:
    """Return the answer. What got none, or may come later, is tried again a few times."""
    pause, answer = _FIRST_PAUSE, (yield request)
    for _ in range(_ATTEMPTS - 1):
        if isinstance(answer, ApiAnswer) and answer.status != _UNAVAILABLE:
            return answer
        wanted = answer.retry_after if isinstance(answer, ApiAnswer) else None
        yield ApiPause(min(max(pause, wanted or 0.0), _MOST_RETRY_AFTER))
        pause = min(pause * 2, _LONGEST_PAUSE)
        answer = yield request
    if isinstance(answer, ApiAnswer):
        return answer
    reason = answer.reason if answer is not None else "no answer"
    raise CloneCommandError(
        f"{request.method} {request.path}: {reason}",
        "is `zsnapdb serve` there? What was asked for may have been done all the same",
        6,
        code="unreachable",
    )


def _error(answer: ApiAnswer) -> CloneCommandError:
    try:
        said = Problem.model_validate_json(answer.body)
    except ValidationError:
        return CloneCommandError(
            f"the answer has the status {answer.status}, and is none of zsnapdb",
            "does the URL name `zsnapdb serve`?",
            status=answer.status,
        )
    code = said.exit_code if said.exit_code is not None else 1
    return CloneCommandError(said.detail, said.hint, code, code=said.code, status=answer.status)
