"""Messages between the web process and the helper, as lines of JSON: requests, logins of people, and answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, TypeAdapter, ValidationError

from zsnapdb.base import errors
from zsnapdb.base.deadline import TimedSocket, within
from zsnapdb.base.errors import UsageError
from zsnapdb.base.pattern_words import problem_of_value
from zsnapdb.config.serve import HttpsUrl
from zsnapdb.serve.project_limits import LimitRefusal
from zsnapdb.serve.public_hints import public_hint
from zsnapdb.serve.roles import RoleDecision, RoleVerdict
from zsnapdb.verbs.requests import VERBS, RoleVerb

LOGIN_NAME = r"[a-z0-9][a-z0-9_-]{0,31}"
LoginName = Annotated[str, StringConstraints(pattern=rf"^{LOGIN_NAME}$", strict=True)]
IssuerName = Annotated[str, StringConstraints(pattern=r"^https://[!-~]{1,1000}$", strict=True)]
Code = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,4096}$", strict=True)]
"""The code that an issuer sends after a login (RFC 6749, appendix A.11)."""
Verifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._~-]{43,128}$", strict=True)]
"""The secret with which a login proves that it requested the code (RFC 7636, section 4.1)."""
Nonce = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{20,128}$", strict=True)]


class LoginVerbKind(StrEnum):
    """The kinds of requests about logins of people."""

    LIST = "login.list"
    OPEN = "session.open"
    CLOSE = "session.close"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ListLoginsVerb(_Model):
    """The request for the issuers through which people log in."""

    kind: Literal[LoginVerbKind.LIST] = LoginVerbKind.LIST


class OpenSessionVerb(_Model):
    """The request for a session of the person whom the issuer identifies when the code is exchanged.

    The id token must contain `nonce`. `issuer` is the issuer to which the browser was sent.
    """

    kind: Literal[LoginVerbKind.OPEN] = LoginVerbKind.OPEN
    login: LoginName
    issuer: IssuerName
    code: Code
    verifier: Verifier
    nonce: Nonce


class CloseSessionVerb(_Model):
    """The request to end the session that the sent token belongs to. Other tokens are not changed."""

    kind: Literal[LoginVerbKind.CLOSE] = LoginVerbKind.CLOSE


LoginVerb = ListLoginsVerb | OpenSessionVerb | CloseSessionVerb


class KnownLogin(_Model):
    """An issuer through which people log in: the address to which a browser is sent, and its return address."""

    name: LoginName
    issuer: str
    authorization_endpoint: HttpsUrl
    client_id: str
    redirect_uri: str
    scopes: tuple[str, ...]


class KnownLogins(_Model):
    """All issuers through which people log in."""

    logins: tuple[KnownLogin, ...]


class OpenedLogin(_Model):
    """An opened session: its subject, its token, and its duration in seconds."""

    subject: str
    token: str
    seconds: float


MOST_BYTES = 64 * 1024
"""Maximum length of a request in bytes."""
MOST_OF_BEARER = 8192
"""Maximum length of a bearer credential. Id tokens with many claims have a few thousand characters."""
BearerToken = Annotated[str, StringConstraints(pattern=rf"^[!-~]{{0,{MOST_OF_BEARER}}}$", strict=True)]
if TYPE_CHECKING:
    Verb = RoleVerb | LoginVerb
else:
    Verb = Annotated[Union[(*VERBS, *get_args(LoginVerb))], Field(discriminator="kind")]


class HelperRequest(_Model):
    """A verb, with the token as the web process received it."""

    token: BearerToken
    verb: Verb

    def line(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode() + b"\n"


_REQUEST: TypeAdapter[HelperRequest] = TypeAdapter(HelperRequest)


def parse_request(line: bytes) -> HelperRequest:
    """Return the request in a line. An invalid request raises UsageError without the values of the request."""
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        raise UsageError(
            f"the request is not valid: {explain_refusal(error)}",
            hint="see `GET /api/v1/openapi.json` for the valid requests",
        ) from None


def explain_refusal(error: ValidationError) -> str:
    """Return the invalid fields and their errors, without the values that were sent."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{_place(one['loc'])}: {problem_of_value(one)}" for one in found[:5])


def _place(path: tuple[int | str, ...]) -> str:
    # The sender chose the name of an unknown field. The error shows a shortened and escaped name.
    return ".".join(str(part)[:40] for part in path) or "the line"


UNAUTHENTICATED = "unauthenticated"
QUOTA = "quota"
KEY_REUSED = "idempotency-key-reused"
INTERRUPTED = "interrupted"
CANCELLED = "cancelled"


class BegunAnswer(_Model):
    """The operation has started. The caller may disconnect, and later find the operation by its id."""

    kind: Literal["begun"] = "begun"
    operation: str


class PendingAnswer(_Model):
    """The operation is still running. The caller can query the operation later."""

    kind: Literal["pending"] = "pending"
    operation: str


class ResultAnswer(_Model):
    """The request succeeded. `document` is the output of the command."""

    kind: Literal["result"] = "result"
    document: Mapping[str, JsonValue]


class FailureAnswer(_Model):
    """The request failed. The message, hint and code are the same as those that the command prints."""

    kind: Literal["error"] = "error"
    code: str
    message: str
    hint: str = ""
    exit_code: int


class WatchedOperation(_Model):
    """An operation of the subject, and its result; None if it is still running."""

    operation: str
    subject: str
    ending: Annotated[ResultAnswer | FailureAnswer, Field(discriminator="kind")] | None = None

    def answer(self) -> ResultAnswer:
        """Return the answer to a request that watches this operation."""
        return ResultAnswer.model_validate({"document": self.model_dump(mode="json")})


Answer = Annotated[BegunAnswer | PendingAnswer | ResultAnswer | FailureAnswer, Field(discriminator="kind")]
Ending = PendingAnswer | ResultAnswer | FailureAnswer
"""The last line of an answer."""
ANSWER: TypeAdapter[BegunAnswer | PendingAnswer | ResultAnswer | FailureAnswer] = TypeAdapter(Answer)


class RefusedRequest(Exception):
    """A refusal of a request, with the failure to return. No operation was started."""

    def __init__(self, failure: FailureAnswer) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def because(cls, error: errors.ZsnapdbError, code: str = "") -> RefusedRequest:
        """Return the refusal for an error, with the given code ("" means the code of the error)."""
        failure = failure_of(error)
        return cls(failure.model_copy(update={"code": code}) if code else failure)


def failure_of(error: errors.ZsnapdbError) -> FailureAnswer:
    """Return the failure message for an error."""
    return FailureAnswer(code=error.code, message=error.message, hint=error.hint, exit_code=error.exit_code)


def cancelled(message: str) -> FailureAnswer:
    """Return the result of an operation that its subject cancelled."""
    hint = "check the clone; its command or `zsnapdb reap` removes incomplete clones"
    return FailureAnswer(code=CANCELLED, message=message, hint=hint, exit_code=errors.INTERRUPTED)


def has_ended(operation: str) -> RefusedRequest:
    """Return the refusal to cancel an operation that had already ended by itself."""
    what = f"operation {operation} has ended"
    return RefusedRequest.because(errors.PreflightError(what, hint=f"`GET /operations/{operation}` says how"))


def over_commits(owner: str, used: int, most: int) -> RefusedRequest:
    """Return the refusal of a commit beyond the limit."""
    what = f"the clones of {owner} have {used} commits, and serve.commits_per_subject is {most}"
    hint = "destroy a clone: its commits go with it, unless other clones were made of them"
    return RefusedRequest.because(errors.PreflightError(what, hint=hint), QUOTA)


def unauthenticated() -> RefusedRequest:
    """Return the refusal of a missing or invalid token.

    The text is the same for a missing, unknown, expired or revoked token, and for a token that gives no access.
    """
    hint = (
        "send `Authorization: Bearer TOKEN`; if yours has expired or was revoked, an administrator makes another with"
        " `zsnapdb token create`; for an id token, an administrator finds the reason in the helper's log"
    )
    return RefusedRequest.because(errors.NotAllowedError("a valid token is needed", hint=hint), UNAUTHENTICATED)


def not_now(what: str) -> RefusedRequest:
    """Return the refusal for a request that an error on this host prevents. It contains no facts about the host."""
    return RefusedRequest.because(errors.ZsnapdbError(what, hint="the log of the helper says why"))


def forbidden(decision: RoleDecision) -> RefusedRequest:
    """Return the refusal of a request that the subject's role does not permit."""
    return RefusedRequest.because(errors.NotAllowedError(decision.reason, hint=decision.hint))


def unmasked(instance: str) -> RefusedRequest:
    """Return the refusal for a role that may not have an unmasked clone of the instance."""
    reason = f"clones of {instance} are not masked, and only an operator may have one"
    hint = f"an administrator sets masking.run of {instance}, or names it in serve.unmasked"
    return RefusedRequest.because(errors.NotAllowedError(reason, hint=hint))


def unmasked_words(clone: str) -> RefusedRequest:
    """Return the refusal of a request for texts from an unmasked clone.

    The instance has masking, and the role may not read unmasked texts.
    """
    reason = f"clone {clone} is not masked, and the answer can have words of its data: only an operator may read it"
    return RefusedRequest.because(errors.NotAllowedError(reason, hint="use the token with which the clone was created"))


def no_such(what: str, name: str) -> RefusedRequest:
    """Return the refusal for an object that the subject cannot see. The refusal does not reveal whether it exists."""
    hint = _EXISTING.get(what, "list the existing ones")
    return RefusedRequest.because(errors.UnknownNameError(f"there is no {what} {name}", hint=hint))


_EXISTING = {
    "clone": "list your clones on the page Clones, or with `GET /api/v1/clones`",
    "instance": "list the instances on the page Overview, or with `GET /api/v1/instances`",
    "operation": "check the clone: operations are known for one day, and only to the subject that started them",
}


def over_limit(refused: LimitRefusal) -> RefusedRequest:
    """Return the refusal of a request beyond a limit. The text contains the limit and its current use."""
    return RefusedRequest.because(errors.PreflightError(refused.message, hint=refused.hint), QUOTA)


def key_reused() -> RefusedRequest:
    """Return the refusal of a request whose Idempotency-Key was already used for a different request."""
    error = errors.UsageError("this Idempotency-Key was already used for another request", hint="send another key")
    return RefusedRequest.because(error, KEY_REUSED)


def too_busy(what: str) -> RefusedRequest:
    """Return the refusal of a request while too many other requests are running."""
    return RefusedRequest.because(errors.BusyError(what, hint="try again in some seconds"))


def require(decision: RoleDecision, what: str = "", name: str = "") -> None:
    """Raise RefusedRequest unless the decision permits the request."""
    match decision.verdict:
        case RoleVerdict.HIDDEN:
            raise no_such(what, name)
        case RoleVerdict.FORBIDDEN:
            raise forbidden(decision)


_MOST_BYTES = 32 << 20


@dataclass(frozen=True)
class HelperClient:
    """Client of the helper's socket. The client waits at most `seconds` for each line of an answer."""

    path: Path
    seconds: float = 90.0

    def ask(self, request: HelperRequest) -> Ending:
        """Return the last line of the answer to the request.

        If the helper disconnects after an operation has started, the result is PendingAnswer.
        """
        begun: BegunAnswer | None = None
        try:
            for line in self._lines(request.line()):
                answer = ANSWER.validate_json(line)
                if not isinstance(answer, BegunAnswer):
                    return answer
                begun = answer
        except (OSError, ValidationError):
            if begun is None:
                return _unreachable()
        return PendingAnswer(operation=begun.operation) if begun is not None else _unreachable()

    def begin(self, request: HelperRequest) -> BegunAnswer | Ending:
        """Return the operation as soon as it has started. It continues after the return.

        If no operation was started, return the final answer.
        """
        with contextlib.suppress(OSError, ValidationError), contextlib.closing(self._lines(request.line())) as lines:
            for line in lines:
                return ANSWER.validate_json(line)
        return _unreachable()

    def _lines(self, request: bytes) -> Generator[bytes, None, None]:
        with TimedSocket(socket.AF_UNIX, socket.SOCK_STREAM) as helper:
            with within(self.seconds):
                helper.connect(str(self.path))
                # A helper that refuses may close the socket before it has read everything, but its answer can still be
                # read.
                with contextlib.suppress(BrokenPipeError):
                    helper.sendall(request)
            with helper.makefile("rb") as answers:
                # The first line may report a started operation. Then the second line has its result.
                for _ in range(2):
                    with within(self.seconds, most_bytes=_MOST_BYTES):
                        line = answers.readline(_MOST_BYTES)
                    if not line:
                        return
                    yield line


def _unreachable() -> FailureAnswer:
    return failure_of(errors.UnreachableError("the helper does not answer", hint="is zsnapdb-serve-helper running?"))


MEDIA_TYPE = "application/problem+json"
UNEXPECTED = 500
_STATUS: Mapping[str, int] = {
    UNAUTHENTICATED: 401,
    errors.NotAllowedError.code: 403,
    errors.UnknownNameError.code: 404,
    errors.NotFound.code: 404,
    QUOTA: 409,
    CANCELLED: 409,
    errors.ExistsError.code: 409,
    errors.PreflightError.code: 409,
    errors.LockError.code: 503,
    errors.UsageError.code: 422,
    KEY_REUSED: 422,
    errors.BusyError.code: 503,
    errors.UnreachableError.code: 503,
    errors.CommandTimeout.code: 504,
}
_RETRY_SECONDS = "5"


class ProblemDetails(BaseModel):
    """A problem as RFC 9457 defines it.

    `detail` and `code` are the command's printed message and code; `hint` is its hint without commands that only root
    can run.
    """

    model_config = ConfigDict(frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    hint: str
    exit_code: int | None = None


def status_of(code: str) -> int:
    """Return the HTTP status for an error code."""
    return _STATUS.get(code, UNEXPECTED)


def problem_of(failure: FailureAnswer) -> ProblemDetails:
    """Return the problem for a failure, with a hint for a holder of a token."""
    return ProblemDetails(
        title=failure.code,
        status=status_of(failure.code),
        detail=failure.message,
        code=failure.code,
        hint=public_hint(failure.hint),
        exit_code=failure.exit_code,
    )


def headers_of(status: int) -> dict[str, str]:
    """Return the additional headers that an answer with this HTTP status needs."""
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": _RETRY_SECONDS} if status == 503 else {}
