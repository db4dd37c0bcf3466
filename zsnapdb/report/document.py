"""The frame of every JSON document.

`version` is the version of the document format, now 1; `kind` says which fields the document has.
Sizes are in bytes, times in seconds or UTC.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from zsnapdb.errors import ZsnapdbError

VERSION = 1


def document(kind: str, **fields: Any) -> str:
    """Return a document of that kind: one line of JSON."""
    return json.dumps({"version": VERSION, "kind": kind, **fields})


def error_fields(error: ZsnapdbError) -> dict[str, str]:
    """Return the fields of an error in a document."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def errors_fields(errors: Sequence[ZsnapdbError]) -> list[dict[str, str]]:
    """Return the fields of several errors in a document."""
    return [error_fields(error) for error in errors]


def error(error: ZsnapdbError) -> str:
    """Return the document of a failure."""
    return document("error", error=error_fields(error), exit_code=error.exit_code)
