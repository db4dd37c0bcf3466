"""Requests to the API and the meaning of its answers, as generators that do no I/O.

A generator yields requests and pauses. The generator's driver sends each request, waits for each pause, and passes the
answer back. The same logic therefore serves programs with threads and programs with asyncio.
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
"""Maximum wait for one result in seconds. A clone of a backup that must be received first can take that long."""
_ATTEMPTS = 6
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
_MOST_RETRY_AFTER = 30.0
_ACCEPTED, _LEAST_ERROR, _NOT_FOUND, _UNAVAILABLE = 202, 300, 404, 503
_WHO = "the API"


@dataclass(frozen=True)
class ApiRequest:
    """A request that can be repeated safely, because it only reads data or has an idempotency key."""

    method: str
    path: str
    body: Mapping[str, object] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ApiPause:
    """A pause in seconds before the next request."""

    seconds: float


@dataclass(frozen=True)
class ApiAnswer:
    """The answer to a request, and the host that sent it. The field `retry_after` is in seconds (None if not given)."""

    status: int
    body: bytes = field(repr=False)
    retry_after: float | None = None
    host: str = ""


@dataclass(frozen=True)
class LostAnswer:
    """The reason why an answer is missing. If the request was sent, it may still have been executed.

    The field `is_untrusted` says whether the certificate of the host was refused.
    """

    reason: str
    is_sent: bool = True
    is_untrusted: bool = False


P = ParamSpec("P")
T = TypeVar("T")
Exchange: TypeAlias = Generator[ApiRequest | ApiPause, ApiAnswer | LostAnswer | None, T]
AnyClone = str | models.KnownClone | models.ReachableClone


class CloneOptions(TypedDict, total=False):
    """Options of a new clone besides instance and name: the fields of `NewClone`, by their names.

    The clone's data comes from the newest snapshot set, the point `at`, or the snapshot set or commit `source`. With
    `heartbeat` (seconds), the clone is destroyed soon after this time has passed without a heartbeat.
    """

    at: Annotated[
        str | None, Field(description="Point of the data: 2h (2 hours ago), a time with its zone, or a GTID.")
    ]
    source: Annotated[str | None, Field(description="Id of a set or commit with the data; excludes at.")]
    ttl: Annotated[str | None, Field(description="Length of the lease, for example 4h.")]
    profile: Annotated[str | None, Field(description="Size of its server: tiny or normal.")]
    mask: Annotated[bool | None, Field(description="Mask it even if the site does not require it.")]
    heartbeat: float | None
    fresh: Annotated[bool | None, Field(description="Use the newest snapshot set even if a pool clone waits.")]


def given_options(options: CloneOptions) -> Mapping[str, str | Literal[True]]:
    """Return the options that are set, by their names in the API and on the command line."""
    given: dict[str, str | Literal[True]] = {}
    for name, value in options.items():
        if value is not None and value is not False:
            text = f"{value:g}s" if isinstance(value, float | int) and value is not True else value
            given[verbs.NewClone.model_fields[name].alias or name] = True if text is True else str(text)
    return given


def new_key() -> str:
    """Return a key that identifies repetitions of one request."""
    return secrets.token_urlsafe(18)


def create(
    instance: str, name: str | None = None, *, key: str | None = None, **options: Unpack[CloneOptions]
) -> Exchange[models.ReachableClone]:
    """Create and return a clone of the newest snapshot set, the point `at`, or the snapshot set or commit `source`.

    The argument `key` is the Idempotency-Key (None means a new key). A second call with the same key returns the clone
    of the first call. If an answer is lost, the request is repeated with the same key, so no second clone is created.
    """
    answer = yield from _followed(_creation(key or new_key(), instance, name, options))
    return _reachable(parsed(models.MadeClone, answer.body, _WHO), answer.host)


def _reachable(made: models.MadeClone, host: str) -> models.ReachableClone:
    """Return the clone. If the clone listens at every address, its `host` is the host that answered the request."""
    address = made.clone.bind_address
    return models.reachable(made, host if address in models.EVERY_ADDRESS else address)


def take_back(key: str, instance: str, name: str | None, options: CloneOptions) -> Exchange[None]:
    """Cancel the creation of the clone with this key, and destroy the clone if it already exists."""
    answer = yield from _answered(_creation(key, instance, name, options))
    if answer.status == _ACCEPTED:
        operation = parsed(BegunOperation, answer.body, _WHO).operation
        try:
            yield from _followed(_request(verbs.CancelOperationVerb, operation))
        except CloneCommandError:
            # The operation had already ended, with a clone or with an error.
            answer = yield from _answered(_request(verbs.GetOperationVerb, operation))
    if answer.status < _LEAST_ERROR and answer.status != _ACCEPTED:
        yield from destroy(parsed(models.CloneChange, answer.body, _WHO).clone)


def _creation(key: str, instance: str, name: str | None, options: CloneOptions) -> ApiRequest:
    named = {"name": name} if name is not None else {}
    return _request(verbs.CreateCloneVerb, key=key, sent={"instance": instance, **named, **given_options(options)})


def _request(
    verb: type[verbs.RoleVerb], of: AnyClone = "", sent: Mapping[str, object] | None = None, key: str | None = None
) -> ApiRequest:
    """Return the request that executes a verb on the named object.

    The route determines whether `sent` is in the query or the body.

    A request for a change carries the idempotency key `key` (None means a new key), so the change is executed only
    once. If a clone is given as an object, the request contains its GUID, so that it never affects a later clone with
    that name.
    """
    route = verb.route
    assert route is not None
    name = of if isinstance(of, str) else of.id
    path = route.path.format(name=quote(name, safe=""), id=quote(name, safe=""))
    headers = {"Idempotency-Key": key or new_key()} if "key" in verb.model_fields else {}
    if not isinstance(of, str) and of.guid:
        headers[verbs.GUID_HEADER] = of.guid
    if route.method == "POST":
        return ApiRequest(route.method, path, sent, headers)
    return ApiRequest(route.method, f"{path}?{urlencode(sent)}" if sent else path, None, headers)


def instances() -> Exchange[tuple[models.KnownInstance, ...]]:
    """Return the instances that can be cloned."""
    return (yield from _document(models.KnownInstances, _request(verbs.ListInstancesVerb))).instances


def points(instance: str) -> Exchange[PointsDocument]:
    """Return the states of the instance that can be cloned."""
    return (yield from _document(PointsDocument, _request(verbs.InstancePointsVerb, instance)))


def clones() -> Exchange[tuple[models.KnownClone, ...]]:
    """Return the clones that the token's holder may see."""
    return (yield from _document(models.KnownClones, _request(verbs.ListClonesVerb))).clones


def get(clone: AnyClone) -> Exchange[models.KnownClone]:
    """Return the current state of the clone."""
    return (yield from _document(models.CloneChange, _request(verbs.GetCloneVerb, clone))).clone


def login(clone: AnyClone, *, new: bool = False) -> Exchange[models.ReachableClone]:
    """Return your own clone with its login. With `new`, the clone first gets a new password, and its sessions end."""
    found = yield from _followed(_request(verbs.GetCloneVerb, clone))
    known = parsed(models.CloneChange, found.body, _WHO).clone
    verb = verbs.NewLoginVerb if new else verbs.GetLoginVerb
    shown = yield from _document(ShownLogin, _request(verb, known))
    made = models.MadeClone(clone=known, user=shown.user, password=SecretStr(shown.password), of_pool=False)
    return _reachable(made, found.host)


def reset(clone: AnyClone) -> Exchange[models.CloneReset]:
    """Reset the clone to its original data. Return how it was reset, and why a faster way was not possible."""
    return (yield from _document(models.CloneReset, _request(verbs.ResetCloneVerb, clone)))


def start(clone: AnyClone) -> Exchange[models.KnownClone]:
    """Start the clone's server. If it is already running, do nothing."""
    return (yield from _document(models.CloneChange, _request(verbs.StartCloneVerb, clone))).clone


def stop(clone: AnyClone) -> Exchange[models.KnownClone]:
    """Stop the clone's server. The clone keeps its data and its lease."""
    return (yield from _document(models.CloneChange, _request(verbs.StopCloneVerb, clone))).clone


def extend(clone: AnyClone, ttl: str | None = None) -> Exchange[models.KnownClone]:
    """Extend the lease to `ttl` from now (None means the lease of a new clone). A lease is never shortened."""
    sent = {"ttl": ttl} if ttl is not None else {}
    return (yield from _document(models.CloneChange, _request(verbs.ExtendCloneVerb, clone, sent))).clone


def protect(clone: AnyClone, duration: str) -> Exchange[models.KnownClone]:
    """Protect the clone from `zsnapdb reap` for the given time, such as 2d."""
    return (yield from _document(models.CloneChange, _request(verbs.ProtectCloneVerb, clone, {"for": duration}))).clone


def unprotect(clone: AnyClone) -> Exchange[models.KnownClone]:
    """End the protection of the clone."""
    return (yield from _document(models.CloneChange, _request(verbs.UnprotectCloneVerb, clone))).clone


def commit(clone: AnyClone, message: str = "") -> Exchange[models.CloneCommit]:
    """Commit the current state of the clone. The commit's id can be the `source` of a new clone."""
    return (yield from _document(models.CloneCommit, _request(verbs.CommitCloneVerb, clone, {"message": message})))


def branches(clone: AnyClone) -> Exchange[models.KnownBranches]:
    """Return the branches of the clone."""
    return (yield from _document(models.KnownBranches, _request(verbs.ListBranchesVerb, clone)))


def create_branch(clone: AnyClone, branch: str, start: str | None = None) -> Exchange[models.KnownBranches]:
    """Create a branch that starts at a branch or commit. None means the current state, committed if necessary."""
    sent = {"branch": branch, **({"from": start} if start is not None else {})}
    return (yield from _document(models.KnownBranches, _request(verbs.CreateBranchVerb, clone, sent)))


def switch_branch(clone: AnyClone, branch: str) -> Exchange[models.SwitchedClone]:
    """Switch the clone to the newest commit of another branch. Uncommitted changes are committed first."""
    return (yield from _document(models.SwitchedClone, _request(verbs.SwitchBranchVerb, clone, {"branch": branch})))


def delete_branch(clone: AnyClone, branch: str) -> Exchange[models.KnownBranches]:
    """Delete a branch of the clone. The branch's commits are kept."""
    return (yield from _document(models.KnownBranches, _request(verbs.DeleteBranchVerb, clone, {"branch": branch})))


def commits(clone: AnyClone, state: str | None = None) -> Exchange[tuple[models.BranchCommit, ...]]:
    """Return the commits that lead to a branch or a commit (None means the current branch), newest first."""
    sent = {"of": state} if state is not None else {}
    return (yield from _document(models.BranchLog, _request(verbs.LogBranchVerb, clone, sent))).commits


def diff(clone: AnyClone, before: str, after: str, limit: int = 10) -> Exchange[models.StateDifference]:
    """Compare two branches or commits of the clone. At most `limit` rows are shown per table."""
    sent = {"before": before, "after": after, "limit": limit}
    return (yield from _document(models.StateDifference, _request(verbs.DiffBranchesVerb, clone, sent)))


def logs(clone: AnyClone, lines: int = 100) -> Exchange[tuple[str, ...]]:
    """Return the last lines of the error log of the clone's server. The text is untrusted."""
    return (yield from _document(LogsDocument, _request(verbs.CloneLogsVerb, clone, {"lines": lines}))).lines


def beat(clone: AnyClone) -> Exchange[None]:
    """Send a heartbeat for the clone. A failed heartbeat is not repeated, because the next heartbeat follows soon."""
    answer = yield _request(verbs.BeatCloneVerb, clone)
    if not isinstance(answer, ApiAnswer):
        raise CloneCommandError(answer.reason if answer is not None else "no answer", exit_code=6, code="unreachable")
    if answer.status >= _LEAST_ERROR:
        raise _error(answer)


def destroy(clone: AnyClone) -> Exchange[None]:
    """Destroy the clone. If the clone no longer exists, no error is raised.

    If a clone is given as an object and another clone now has its name, nothing is destroyed.
    """
    try:
        yield from _followed(_request(verbs.DestroyCloneVerb, clone))
    except CloneCommandError as error:
        if error.status != _NOT_FOUND:
            raise


def _document(model: type[models.D], request: ApiRequest) -> Exchange[models.D]:
    return parsed(model, (yield from _followed(request)).body, _WHO)


def _followed(request: ApiRequest) -> Exchange[ApiAnswer]:
    """Return the answer to the request. If an operation was started, wait for its end."""
    deadline, pause = time.monotonic() + SECONDS, _FIRST_PAUSE
    answer = yield from _answered(request)
    operation = ""
    while answer.status == _ACCEPTED:
        if not operation:
            operation = parsed(BegunOperation, answer.body, _WHO).operation
        if time.monotonic() >= deadline:
            raise CloneCommandError(
                f"operation {operation} is still running after {SECONDS:g} s", "look at the clone later"
            )
        yield ApiPause(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        answer = yield from _answered(_request(verbs.GetOperationVerb, operation))
    if answer.status >= _LEAST_ERROR:
        raise _error(answer)
    return answer


def _answered(request: ApiRequest) -> Exchange[ApiAnswer]:
    """Return the answer. If the answer is lost or has status 503, repeat the request a few times.

    If the certificate is refused, raise an error at once.
    """
    pause, may_have_run = _FIRST_PAUSE, False
    for number in range(1, _ATTEMPTS + 1):
        answer = yield request
        if isinstance(answer, ApiAnswer) and (answer.status != _UNAVAILABLE or number == _ATTEMPTS):
            return answer
        if isinstance(answer, LostAnswer):
            may_have_run |= answer.is_sent and request.method != "GET"
            if answer.is_untrusted or number == _ATTEMPTS:
                raise _unreachable(request, answer, may_have_run=may_have_run)
        wanted = answer.retry_after if isinstance(answer, ApiAnswer) else None
        yield ApiPause(min(max(pause, wanted or 0.0), _MOST_RETRY_AFTER))
        pause = min(pause * 2, _LONGEST_PAUSE)
    raise AssertionError("no answer was given to the exchange")


def _unreachable(request: ApiRequest, lost: LostAnswer, *, may_have_run: bool) -> CloneCommandError:
    hint = "name the CA of its certificate: `ca_file` in Python, `--tls-ca` of a command, or the variable SSL_CERT_FILE"
    if not lost.is_untrusted:
        hint = "check that `zsnapdb serve` runs" + ("; the request may have been carried out" if may_have_run else "")
    return CloneCommandError(f"{request.method} {request.path}: {lost.reason}", hint, 6, code="unreachable")


def _error(answer: ApiAnswer) -> CloneCommandError:
    try:
        said = models.Problem.model_validate_json(answer.body)
    except ValidationError:
        return CloneCommandError(
            f"the answer with the status {answer.status} is not from zsnapdb",
            "does the URL name `zsnapdb serve`?",
            status=answer.status,
        )
    code = said.exit_code if said.exit_code is not None else 1
    return CloneCommandError(said.detail, said.hint, code, code=said.code, status=answer.status)


class WithThreads:
    """A client whose methods return when the request has ended."""

    def _run(self, asked: Exchange[T]) -> T:
        raise NotImplementedError


class WithAsyncio:
    """A client whose methods are awaited."""

    async def _run(self, asked: Exchange[T]) -> T:
        raise NotImplementedError


class RequestedClone(Generic[P, T]):
    """A method of both clients, which executes the requests of a generator function."""

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
    """Methods of both clients."""

    create = RequestedClone(create)
    instances = RequestedClone(instances)
    points = RequestedClone(points)
    clones = RequestedClone(clones)
    get = RequestedClone(get)
    login = RequestedClone(login)
    reset = RequestedClone(reset)
    start = RequestedClone(start)
    stop = RequestedClone(stop)
    extend = RequestedClone(extend)
    protect = RequestedClone(protect)
    unprotect = RequestedClone(unprotect)
    commit = RequestedClone(commit)
    branches = RequestedClone(branches)
    create_branch = RequestedClone(create_branch)
    switch_branch = RequestedClone(switch_branch)
    delete_branch = RequestedClone(delete_branch)
    commits = RequestedClone(commits)
    diff = RequestedClone(diff)
    logs = RequestedClone(logs)
    beat = RequestedClone(beat)
    destroy = RequestedClone(destroy)
