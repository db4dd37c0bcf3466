"""How a failure is told by HTTP: the status of its code, and problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from zsnapdb.base.errors import (
    BusyError,
    CommandTimeout,
    ExistsError,
    LockError,
    NotAllowedError,
    NotThere,
    PreflightError,
    UnknownNameError,
    UnreachableError,
    UsageError,
)
from zsnapdb.serve.messages import CANCELLED, KEY_REUSED, QUOTA, UNAUTHENTICATED, FailureAnswer

MEDIA_TYPE = "application/problem+json"
UNEXPECTED = 500
_STATUS: Mapping[str, int] = {
    UNAUTHENTICATED: 401,
    NotAllowedError.code: 403,
    UnknownNameError.code: 404,
    NotThere.code: 404,
    QUOTA: 409,
    CANCELLED: 409,
    ExistsError.code: 409,
    PreflightError.code: 409,
    LockError.code: 503,
    UsageError.code: 422,
    KEY_REUSED: 422,
    BusyError.code: 503,
    UnreachableError.code: 503,
    CommandTimeout.code: 504,
}
_RETRY_SECONDS = "5"


class ProblemDetails(BaseModel):
    """What went wrong. `detail`, `hint` and `code` are message, hint and code of the command line."""

    model_config = ConfigDict(frozen=True)

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    hint: str
    exit_code: int | None = None


def status_of(code: str) -> int:
    """Return the HTTP status of a code of an error."""
    return _STATUS.get(code, UNEXPECTED)


def problem_of(failure: FailureAnswer) -> ProblemDetails:
    """Return the problem that tells of a failure."""
    return ProblemDetails(
        title=failure.code,
        status=status_of(failure.code),
        detail=failure.message,
        code=failure.code,
        hint=failure.hint,
        exit_code=failure.exit_code,
    )


def headers_of(status: int) -> dict[str, str]:
    """Return the headers that a status needs beside the problem."""
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": _RETRY_SECONDS} if status == 503 else {}
