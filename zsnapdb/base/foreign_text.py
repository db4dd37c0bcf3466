"""Text and JSON that others wrote: read where no model parses it, and made safe for a person's terminal."""

from __future__ import annotations

import json
import re


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


CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
"""Characters that end a line, steer a terminal, or are half of a character, for a regular expression."""

_UNPRINTED = re.compile(rf"(?![\n\t])[{CONTROL}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printed(text: str) -> str:
    r"""Return the text with control characters as `\x1b` or `\u2028`. Its line feeds and tabs stay.

    What comes out can be printed and encoded as UTF-8, and passes unchanged a second time.
    """
    return _UNPRINTED.sub(_escape, text)
