"""Text of others on its way to a person: of servers, stores, programs, hooks, files and documents of a bucket.

A terminal obeys control characters, a log is split at line breaks, and some characters turn the order of others
around. So every error, message and result passes through `printed`.
"""

from __future__ import annotations

import re

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
