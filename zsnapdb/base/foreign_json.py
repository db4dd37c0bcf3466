"""JSON that others wrote, where no model parses it. Every text that is no document is one kind of error."""

from __future__ import annotations

import json


def parsed(text: bytes | str) -> object:
    """Return the document. ValueError if the text is no JSON, is not UTF-8, or is nested too deeply to be read."""
    try:
        document: object = json.loads(text)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    return document


def fields_of(text: bytes | str) -> dict[str, object]:
    """Return the fields of the object in the text. ValueError if the text is no JSON object."""
    document = parsed(text)
    if not isinstance(document, dict):
        raise ValueError("the document is no object")
    return document
