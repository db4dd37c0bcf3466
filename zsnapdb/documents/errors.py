"""Errors and findings in documents, as far as the reader may see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from zsnapdb.base import audience
from zsnapdb.base.errors import ZsnapdbError, retry_class
from zsnapdb.documents.base import At, Document, iso


class ErrorFields(TypedDict):
    """An error: its code, message and hint.

    `audience` is the owner of clones who may read the text, if the command ran for one.
    """

    code: str
    message: str
    hint: str
    audience: NotRequired[str]


def error_fields(error: ZsnapdbError) -> ErrorFields:
    """Return the fields of an error in a document."""
    reader = audience.current_audience()
    told = reader.told(error)
    fields: ErrorFields = {"code": told.code, "message": told.message, "hint": told.hint}
    return fields if reader.sees_all else {**fields, "audience": reader.owner}


def errors_fields(errors: Iterable[ZsnapdbError]) -> list[ErrorFields]:
    """Return the fields of several errors in a document."""
    return [error_fields(error) for error in errors]


class ErrorDocument(Document):
    """The failure of a command. It is printed instead of the result.

    `retry`: whether to repeat the same command: again, never, or twice (two attempts in total).
    """

    error: Annotated[ErrorFields, At("", error_fields)]
    exit_code: int
    retry: Annotated[str, At("", lambda error: retry_class(error.exit_code, error.code))]


class FindingFields(Document):
    """The result of a check."""

    severity: str
    what: str
    detail: str
    hint: str


class MissingFields(Document):
    """A difference between a repository and the backups that this host stored in it."""

    kind: str
    text: str
    hint: str
    backups: tuple[str, ...]


class DamageFields(Document):
    """Known damage of a stored object."""

    name: str
    kind: str
    since: Annotated[str, At("since", iso)]
    by: str
    findings: tuple[str, ...]
