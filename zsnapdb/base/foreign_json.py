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


def exact_fields_of(text: bytes | str) -> dict[str, object]:
    """Return the fields of the object in the text. ValueError as of `fields_of`, and if readers could differ over it.

    That is so where a name stands twice in an object, or a number is none of JSON (RFC 8259, sections 4 and 6).
    """
    try:
        document: object = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the document is no object")
    return document


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice")
    return fields


def _no_number(_text: str) -> object:
    raise ValueError("a number is none of JSON")
