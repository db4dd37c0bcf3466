"""The frame of every JSON document.

`version` is the version of the document format, now 1; `kind` says which fields the document has.
Sizes are in bytes, times in seconds or UTC. The fields of each document are a TypedDict beside its view: the schemas
that `zsnapdb schema` prints are made of them. (pydantic wants the TypedDict of typing_extensions before Python 3.12.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired

from typing_extensions import TypedDict

from zsnapdb.base import audience
from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.retry_classes import retry_class

VERSION = 1


class ErrorFields(TypedDict):
    """An error: its code, what happened, and what to do about it.

    `audience` is the owner of clones who may read the text, if the command ran for one.
    """

    code: str
    message: str
    hint: str
    audience: NotRequired[str]


class ErrorDocument(TypedDict):
    """The failure of a command. It is printed instead of the result.

    `retry`: whether the same command is worth repeating: again, never, or twice (two attempts in all).
    """

    error: ErrorFields
    exit_code: int
    retry: str


@dataclass(frozen=True)
class Dumped:
    """Annotates a field as a printed model or dataclass: the schema of the field is that of the class.

    `without` are the names of fields that are not printed, `adding` is a TypedDict of fields that are printed as well.
    """

    printed: type
    without: tuple[str, ...] = ()
    adding: type | None = None

    def __get_pydantic_json_schema__(self, _schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the class. pydantic calls it."""
        from pydantic import TypeAdapter

        made: dict[str, Any] = handler(TypeAdapter(self.printed).core_schema)
        if not self.without and self.adding is None:
            return made
        own = dict(handler.resolve_ref_schema(made))
        more = handler.resolve_ref_schema(handler(TypeAdapter(self.adding).core_schema)) if self.adding else {}
        properties = {**own["properties"], **more.get("properties", {})}
        own["properties"] = {name: one for name, one in properties.items() if name not in self.without}
        required = (*own.get("required", ()), *more.get("required", ()))
        own["required"] = [name for name in required if name not in self.without]
        return own


def document(kind: str, **fields: Any) -> str:
    """Return a document of that kind: one line of JSON."""
    return json.dumps({"version": VERSION, "kind": kind, **fields})


def error_fields(error: ZsnapdbError) -> ErrorFields:
    """Return the fields of an error in a document."""
    reader = audience.current()
    told = reader.told(error)
    fields: ErrorFields = {"code": told.code, "message": told.message, "hint": told.hint}
    return fields if reader.sees_all else {**fields, "audience": reader.owner}


def errors_fields(errors: Sequence[ZsnapdbError]) -> list[ErrorFields]:
    """Return the fields of several errors in a document."""
    return [error_fields(error) for error in errors]


def error(error: ZsnapdbError) -> str:
    """Return the document of a failure."""
    retry = retry_class(error.exit_code, error.code).value
    fields: ErrorDocument = {"error": error_fields(error), "exit_code": error.exit_code, "retry": retry}
    return document("error", **fields)
