"""The frame that every JSON document has.

`version` is that of this form, now 1; `kind` names the fields. Sizes in bytes, times in seconds or UTC.
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
    """Return what a document says of an error."""
    return {"code": error.code, "message": error.message, "hint": error.hint}


def errors_fields(errors: Sequence[ZsnapdbError]) -> list[dict[str, str]]:
    """Return what a document says of several errors."""
    return [error_fields(error) for error in errors]


def error(error: ZsnapdbError) -> str:
    """A failure."""
    return document("error", error=error_fields(error), exit_code=error.exit_code)
