"""The frame of every JSON document.

`version` is the version of the document format, now 1; `kind` determines its fields. Sizes are in bytes, times in
seconds or UTC. `zsnapdb schema` prints the schemas of the documents' types.
"""

from __future__ import annotations

import json
from typing import Any

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.documents.base import Dumped as Dumped
from zsnapdb.documents.errors import ErrorDocument as ErrorDocument
from zsnapdb.documents.errors import ErrorFields as ErrorFields
from zsnapdb.documents.errors import error_fields as error_fields
from zsnapdb.documents.errors import errors_fields as errors_fields

VERSION = 1


def document(kind: str, **fields: Any) -> str:
    """Return a document of that kind: one line of JSON."""
    return json.dumps({"version": VERSION, "kind": kind, **fields})


def error(error: ZsnapdbError) -> str:
    """Return the document of a failure."""
    return document("error", **ErrorDocument.of_result(error).json_fields())
