"""The forms in which a value can lie in the files of a server. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass

_SHORTEST = 6
"""Shorter forms occur by chance."""


@dataclass(frozen=True)
class Canary:
    """A value that no file may contain: its number in the configuration (from 1), and its forms."""

    number: int
    forms: tuple[bytes, ...]


def canaries(values: tuple[str, ...]) -> tuple[Canary, ...]:
    """Return the values with their forms."""
    return tuple(Canary(number, forms(value)) for number, value in enumerate(values, start=1))


def forms(value: str) -> tuple[bytes, ...]:
    """Return the bytes of the value in the character sets of columns, as a fulltext word, and in base64.

    A fulltext index has its words in lower case. MySQL writes the values of a histogram in base64 (refman 8.4,
    "Optimizer Statistics").
    """
    plain = [value.encode(), value.lower().encode(), value.encode("utf-16-be"), value.encode("utf-16-le")]
    if all(ord(character) < 256 for character in value):
        plain.append(value.encode("latin-1"))
    all_forms = [*plain, *(_in_base64(value.encode(), skipped) for skipped in range(3))]
    return tuple(dict.fromkeys(form for form in all_forms if len(form) >= _SHORTEST))


def _in_base64(text: bytes, skipped: int) -> bytes:
    """Return the characters that depend on `text` alone, in base64 of a text that has `skipped` bytes before it."""
    encoded = base64.b64encode(b"\0" * skipped + text)
    return encoded[-(-skipped * 8 // 6) : (skipped + len(text)) * 8 // 6]


def longest(all_canaries: tuple[Canary, ...]) -> int:
    """Return the length in bytes of the longest form."""
    return max((len(form) for canary in all_canaries for form in canary.forms), default=0)
