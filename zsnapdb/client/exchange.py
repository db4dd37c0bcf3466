"""What is asked of the API, and what its answers mean: as generators, without any input and output.

A generator yields requests and pauses. Whoever drives it sends each request, waits as long as a pause says, and gives
back the answer. So one logic serves programs with threads and programs with asyncio.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Annotated, Any, Generic, Literal, ParamSpec, Self, TypeAlias, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote, urlencode

from pydantic import Field, SecretStr, ValidationError

from zsnapdb.client import models
from zsnapdb.client.errors import CloneCommandError
from zsnapdb.client.models import parsed
from zsnapdb.documents.api import BegunOperation, LogsDocument, PointsDocument, ShownLogin
from zsnapdb.verbs import requests as verbs

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
    """The answer to a request, and the host that gave it. `retry_after` (seconds) is None if it does not say it."""

    status: int
    body: bytes = field(repr=False)
    retry_after: float | None = None
    host: str = ""


@dataclass(frozen=True)
class LostAnswer:
    """There was no answer, and why. What was asked for may have been done."""

    reason: str


P = ParamSpec("P")
T = TypeVar("T")
Exchange: TypeAlias = Generator[ApiRequest | ApiPause, ApiAnswer | LostAnswer | None, T]
AnyClone = str | models.KnownClone | models.ReachableClone


class CloneOptions(TypedDict, total=False):
    """What a new clone may be asked for beside its instance and its name: the fields of `NewClone`, by their names.

    It is of the newest set, as of the point `at`, or of the set or commit `source`. With `heartbeat` (seconds) it goes
    soon after nobody has said for so long that its holder is there.
    """

    at: Annotated[str | None, Field(description="Which data: 2h (so long ago), a time with its zone, a GTID.")]
    source: Annotated[str | None, Field(description="Which data: the id of a set or commit, not with at.")]
    ttl: Annotated[str | None, Field(description="How long it stays, for example 4h.")]
    profile: Annotated[str | None, Field(description="How large its server is: tiny or normal.")]
    mask: Annotated[bool | None, Field(description="Mask it also where the site does not demand it.")]
    heartbeat: float | None


def given_options(options: CloneOptions) -> Mapping[str, str | Literal[True]]:
    """Return what is given of the options, by the names that the API and the command line have for them."""
    given: dict[str, str | Literal[True]] = {}
    for name, value in options.items():
        if value is not None and value is not False:
            text = f"{value:g}s" if isinstance(value, float | int) and value is not True else value
            given[verbs.NewClone.model_fields[name].alias or name] = True if text is True else str(text)
    return given


def new_key() -> str:
    """Return a key by which the same request is known when it comes again."""
    return secrets.token_urlsafe(18)


def create(
    instance: str, name: str | None = None, *, key: str | None = None, **options: Unpack[CloneOptions]
) -> Exchange[models.ReachableClone]:
    """Return a new clone: of the newest set, as of the point `at`, or of the set or commit `source`.

    `key` is the Idempotency-Key (None: one of this call): a second call with it has the clone of the first. A lost
    answer is asked for again by the same key, so it makes no second clone.
    """
    answer = yield from _followed(_creation(key or new_key(), instance, name, options))
    return _reachable(parsed(models.MadeClone, answer.body, _WHO), answer.host)


def _reachable(made: models.MadeClone, host: str) -> models.ReachableClone:
    """Return the clone. The host that answered is that of a clone which listens at every address."""
    address = made.clone.bind_address
    return models.reachable(made, host if address in models.EVERY_ADDRESS else address)


def take_back(key: str, instance: str, name: str | None, options: CloneOptions) -> Exchange[None]:
    """End the making of the clone that was asked for by this key, and destroy the clone if it is made already."""
    answer = yield from _answered(_creation(key, instance, name, options))
    if answer.status == _ACCEPTED:
        operation = parsed(BegunOperation, answer.body, _WHO).operation
        try:
            yield from _followed(_request(verbs.CancelOperationVerb, operation))
        except CloneCommandError:
            # It had ended: with a clone, or with an error.
            answer = yield from _answered(_request(verbs.GetOperationVerb, operation))
    if answer.status < _LEAST_ERROR and answer.status != _ACCEPTED:
        yield from destroy(parsed(models.CloneChange, answer.body, _WHO).clone)


def _creation(key: str, instance: str, name: str | None, options: CloneOptions) -> ApiRequest:
    named = {"name": name} if name is not None else {}
    return _request(verbs.CreateCloneVerb, key=key, sent={"instance": instance, **named, **given_options(options)})


def _request(
    verb: type[verbs.RoleVerb], of: AnyClone = "", sent: Mapping[str, object] | None = None, key: str | None = None
) -> ApiRequest:
    """Return the request for a verb about what has that name. `sent` stands where the route of the verb has it.

    What changes something has this key (None: one of its own): it is done once.
    """
    route = verb.route
    assert route is not None
    name = of if isinstance(of, str) else of.id
    path = route.path.format(name=quote(name, safe=""), id=quote(name, safe=""))
    headers = {"Idempotency-Key": key or new_key()} if "key" in verb.model_fields else {}
    if route.method == "POST":
        return ApiRequest(route.method, path, sent, headers)
    return ApiRequest(route.method, f"{path}?{urlencode(sent)}" if sent else path, None, headers)


def instances() -> Exchange[tuple[models.KnownInstance, ...]]:
    """Return the instances that clones can be made of."""
    return (yield from _document(models.KnownInstances, _request(verbs.ListInstancesVerb))).instances


def points(instance: str) -> Exchange[PointsDocument]:
    """Return the states of the instance of which clones can be made."""
    return (yield from _document(PointsDocument, _request(verbs.InstancePointsVerb, instance)))


def clones() -> Exchange[tuple[models.KnownClone, ...]]:
    """Return the clones that the holder of the token may see."""
    return (yield from _document(models.KnownClones, _request(verbs.ListClonesVerb))).clones


def get(clone: AnyClone) -> Exchange[models.KnownClone]:
    """Return the clone as it is now."""
    return (yield from _document(models.CloneChange, _request(verbs.GetCloneVerb, clone))).clone


def login(clone: AnyClone, *, new: bool = False) -> Exchange[models.ReachableClone]:
    """Return a clone of one's own with its login. `new`: it first gets a new password, and its sessions end."""
    found = yield from _followed(_request(verbs.GetCloneVerb, clone))
    known = parsed(models.CloneChange, found.body, _WHO).clone
    verb = verbs.NewLoginVerb if new else verbs.GetLoginVerb
    shown = yield from _document(ShownLogin, _request(verb, known))
    made = models.MadeClone(clone=known, user=shown.user, password=SecretStr(shown.password), of_pool=False)
    return _reachable(made, found.host)


def reset(clone: AnyClone) -> Exchange[int | None]:
    """Give the clone its first data again. Return how many changes of rows were undone; None if it was replaced."""
    return (yield from _document(models.CloneReset, _request(verbs.ResetCloneVerb, clone))).undone


def extend(clone: AnyClone, ttl: str | None = None) -> Exchange[models.KnownClone]:
    """Let the lease end `ttl` from now (None: as long as that of a new clone). It is never made shorter."""
    sent = {"ttl": ttl} if ttl is not None else {}
    return (yield from _document(models.CloneChange, _request(verbs.ExtendCloneVerb, clone, sent))).clone


def protect(clone: AnyClone, duration: str) -> Exchange[models.KnownClone]:
    """Keep the clone from `zsnapdb reap` for that time, such as 2d."""
    return (yield from _document(models.CloneChange, _request(verbs.ProtectCloneVerb, clone, {"for": duration}))).clone


def unprotect(clone: AnyClone) -> Exchange[models.KnownClone]:
    """End the protection of the clone."""
    return (yield from _document(models.CloneChange, _request(verbs.UnprotectCloneVerb, clone))).clone


def commit(clone: AnyClone, message: str = "") -> Exchange[models.CloneCommit]:
    """Keep the present state of the clone: `source` of a new clone takes the id."""
    return (yield from _document(models.CloneCommit, _request(verbs.CommitCloneVerb, clone, {"message": message})))


def branches(clone: AnyClone) -> Exchange[models.KnownBranches]:
    """Return the branches of the clone."""
    return (yield from _document(models.KnownBranches, _request(verbs.ListBranchesVerb, clone)))


def create_branch(clone: AnyClone, branch: str, start: str | None = None) -> Exchange[models.KnownBranches]:
    """Begin a branch at a branch or commit (None: at the present state, which is committed if need be)."""
    sent = {"branch": branch, **({"from": start} if start is not None else {})}
    return (yield from _document(models.KnownBranches, _request(verbs.CreateBranchVerb, clone, sent)))


def switch_branch(clone: AnyClone, branch: str) -> Exchange[models.SwitchedClone]:
    """Give the clone the newest commit of another branch. What was written on the one that is left is committed."""
    return (yield from _document(models.SwitchedClone, _request(verbs.SwitchBranchVerb, clone, {"branch": branch})))


def delete_branch(clone: AnyClone, branch: str) -> Exchange[models.KnownBranches]:
    """Forget a branch of the clone; its commits stay."""
    return (yield from _document(models.KnownBranches, _request(verbs.DeleteBranchVerb, clone, {"branch": branch})))


def commits(clone: AnyClone, state: str | None = None) -> Exchange[tuple[models.BranchCommit, ...]]:
    """Return the commits that lead to a branch or a commit (None: the branch that it is on), newest first."""
    sent = {"of": state} if state is not None else {}
    return (yield from _document(models.BranchLog, _request(verbs.LogBranchVerb, clone, sent))).commits


def diff(clone: AnyClone, before: str, after: str, limit: int = 10) -> Exchange[models.StateDifference]:
    """Compare two branches or commits of the clone; at most `limit` rows that differ are told of each table."""
    sent = {"before": before, "after": after, "limit": limit}
    return (yield from _document(models.StateDifference, _request(verbs.DiffBranchesVerb, clone, sent)))


def logs(clone: AnyClone, lines: int = 100) -> Exchange[tuple[str, ...]]:
    """Return the last lines of the error log of the clone's server. Others chose their text."""
    return (yield from _document(LogsDocument, _request(verbs.CloneLogsVerb, clone, {"lines": lines}))).lines


def beat(clone: AnyClone) -> Exchange[None]:
    """Say that the holder of the clone is there. It is tried once: another beat comes soon."""
    answer = yield _request(verbs.BeatCloneVerb, clone)
    if not isinstance(answer, ApiAnswer):
        raise CloneCommandError(answer.reason if answer is not None else "no answer", exit_code=6, code="unreachable")
    if answer.status >= _LEAST_ERROR:
        raise _error(answer)


def destroy(clone: AnyClone) -> Exchange[None]:
    """Destroy the clone. One that is gone is no error."""
    try:
        yield from _followed(_request(verbs.DestroyCloneVerb, clone))
    except CloneCommandError as error:
        if error.status != _NOT_FOUND:
            raise


def _document(model: type[models.D], request: ApiRequest) -> Exchange[models.D]:
    return parsed(model, (yield from _followed(request)).body, _WHO)


def _followed(request: ApiRequest) -> Exchange[ApiAnswer]:
    """Return the answer to the request, after the end of its operation if it takes longer."""
    deadline, pause = time.monotonic() + SECONDS, _FIRST_PAUSE
    answer = yield from _answered(request)
    operation = ""
    while answer.status == _ACCEPTED:
        if not operation:
            operation = parsed(BegunOperation, answer.body, _WHO).operation
        if time.monotonic() >= deadline:
            raise CloneCommandError(
                f"operation {operation} is still under way after {SECONDS:g} s", "look at the clone later"
            )
        yield ApiPause(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        answer = yield from _answered(_request(verbs.GetOperationVerb, operation))
    if answer.status >= _LEAST_ERROR:
        raise _error(answer)
    return answer


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
        said = models.Problem.model_validate_json(answer.body)
    except ValidationError:
        return CloneCommandError(
            f"the answer has the status {answer.status}, and is none of zsnapdb",
            "does the URL name `zsnapdb serve`?",
            status=answer.status,
        )
    code = said.exit_code if said.exit_code is not None else 1
    return CloneCommandError(said.detail, said.hint, code, code=said.code, status=answer.status)


class WithThreads:
    """A client whose methods return when what they ask for is done."""

    def _run(self, asked: Exchange[T]) -> T:
        raise NotImplementedError


class WithAsyncio:
    """A client whose methods are awaited."""

    async def _run(self, asked: Exchange[T]) -> T:
        raise NotImplementedError


class Asked(Generic[P, T]):
    """A method of both clients: it drives the exchange that a function makes."""

    def __init__(self, make: Callable[P, Exchange[T]]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    @overload
    def __get__(self, client: WithThreads, _owner: object = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: WithAsyncio, _owner: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: None, _owner: object = None) -> Self: ...
    def __get__(self, client: WithThreads | WithAsyncio | None, _owner: object = None) -> Any:
        if client is None:
            return self

        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._run(self._make(*args, **kwargs))

        return update_wrapper(method, self._make)


class CloneMethods:
    """What both clients can do with clones."""

    create = Asked(create)
    instances = Asked(instances)
    points = Asked(points)
    clones = Asked(clones)
    get = Asked(get)
    login = Asked(login)
    reset = Asked(reset)
    extend = Asked(extend)
    protect = Asked(protect)
    unprotect = Asked(unprotect)
    commit = Asked(commit)
    branches = Asked(branches)
    create_branch = Asked(create_branch)
    switch_branch = Asked(switch_branch)
    delete_branch = Asked(delete_branch)
    commits = Asked(commits)
    diff = Asked(diff)
    logs = Asked(logs)
    beat = Asked(beat)
    destroy = Asked(destroy)
