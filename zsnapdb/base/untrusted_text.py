"""Untrusted text and JSON: parsing without a model, and escaping for terminals."""

from __future__ import annotations

import json
import re


def parsed(text: bytes | str) -> object:
    """Return the JSON document. Raises ValueError if the text is not JSON, not UTF-8, or nested too deeply."""
    try:
        document: object = json.loads(text)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    return document


def fields_of(text: bytes | str) -> dict[str, object]:
    """Return the fields of the JSON object. Raises ValueError if the text is not a JSON object."""
    document = parsed(text)
    if not isinstance(document, dict):
        raise ValueError("the document is not an object")
    return document


def exact_fields_of(text: bytes | str) -> dict[str, object]:
    """Return the fields of the JSON object.

    Raises ValueError like `fields_of`, and also if JSON parsers may disagree about the text.

    Parsers differ on duplicate names in an object and on numbers that are not JSON (RFC 8259, sections 4 and 6).
    """
    try:
        document: object = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("the document is not an object")
    return document


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _no_number(_text: str) -> object:
    raise ValueError("a number is not valid JSON")


CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
"""Characters, for a regular expression, that end a line, control a terminal, or are surrogates."""

_UNPRINTED = re.compile(rf"(?![\n\t])[{CONTROL}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printed(text: str) -> str:
    r"""Return the text with control characters escaped, as `\x1b` or `\u2028`. Line feeds and tabs are kept.

    The result can be printed and encoded as UTF-8. A second escape does not change it.
    """
    return _UNPRINTED.sub(_escape, text)
