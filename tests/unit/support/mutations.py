"""Strategies that corrupt valid documents: bytes, JSON values, binlog events, lines of text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from tests.unit.support.binlog_file import File

DEEP = 100_000
HUGE = 200_000

VALUES: tuple[str, ...] = (
    *("null", "true", "0", "-1", "1e999", "-1e999", "NaN", "Infinity", "1.5", "9223372036854775808"),
    *("18446744073709551616", "9" * 30, "9" * 4400, "1e400", "0.1e-400", '""', '"a"', '"0"', '"-"', "[]", "{}"),
    *('"\\u0000"', '"\\ud800"', '"\\u2028"', '"\\u001b[2J"', '"../../etc/passwd"', '"/etc/cron.d"', '".."'),
    *('"a\\nb"', '"a/b"', '"-rf"', '"2026-11-20T10:11:12"', '"0001-01-01T00:00:00+23:59"', "[[],[]]", "[null]"),
    *('"9999-12-31T23:59:59-23:59"', "1e18", '"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:9"', '"0-1-2"', '"1-"'),
    *('"3e11fa47-71ca-11e1-9e33-c80aa9429562:5-1"', '"' + "9" * 4400 + '"', '"20261320T256199Z-7f3a"'),
    *(
        '"00000000T000000Z-0000"',
        '"99991231T235959Z-ffff"',
        '{"a":1,"a":2}',
        '"\\ud83d\\ude00"',
        '"\u00b2"',
        '"\u0663"',
    ),
    "[" * DEEP,
    "[" * 300 + "]" * 300,
    '{"a":' * DEEP,
    '"' + "x" * HUGE + '"',
)
"""JSON texts of values that are unexpected in most places."""

_TEXTS = (
    *("", "\0", "\n", "\t", "\x1b[2J", "\x0c", "\u2028", "\udcff", "..", "/", "-", "9" * 4400, "-1", "²", "٣"),
    *("a b", "\\040", "\\134", " - ", "=", "@", "#", "x" * HUGE),
)


def documents(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return variants of a document whose first line is JSON: other values, other structure, other bytes."""
    return st.one_of(_randomly(valid, _other_values), _randomly(valid, _other_values), spoiled(valid))


def lines(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return variants of a text of lines and words."""
    return st.one_of(_randomly(valid, _other_words), spoiled(valid))


def spoiled(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return variants of some bytes: flipped, cut, doubled, filled, joined with others."""
    return _randomly(valid, _other_bytes)


def binlogs(kinds: tuple[tuple[int, bytes], ...]) -> st.SearchStrategy[bytes]:
    """Return binlogs with these kinds of events, with other bodies and in another order, with correct checksums."""
    return st.integers(0, 2**63).map(lambda seed: _binlog(random.Random(seed), kinds))


def _randomly(valid: bytes, change: Callable[[random.Random, bytes], bytes]) -> st.SearchStrategy[bytes]:
    def changed(seed: int) -> bytes:
        chance, body = random.Random(seed), valid
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            body = change(chance, body)
        return body

    return st.integers(0, 2**63).map(changed)


def _other_bytes(chance: random.Random, body: bytes) -> bytes:
    at = chance.randrange(len(body) + 1)
    end = min(len(body), at + chance.choice((1, 2, 4, 8, 64, 4096)))
    how = chance.randrange(8)
    if how == 0:
        return body[:at]
    if how == 1:
        return body[:at] + body[end:]
    if how == 2:
        return body[:at] + body[at:end] * chance.choice((2, 3, 100)) + body[end:]
    if how == 3:
        return body[:at] + chance.choice((b"\0", b"\xff", b"\x80", b"\n", b'"', b"[")) * (end - at) + body[end:]
    if how == 4:
        return body[:at] + chance.randbytes(chance.choice((1, 8, 300))) + body[at:]
    if how == 5:
        return chance.choice((b"", b"\0" * 4096, b"[" * DEEP, b"\n" * 100, b"9" * HUGE, chance.randbytes(300)))
    if how == 6:
        return body + body[at:]
    flipped = bytearray(body)
    for _ in range(min(len(body), chance.choice((1, 3, 9)))):
        flipped[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def _other_words(chance: random.Random, body: bytes) -> bytes:
    separator = chance.choice((" ", "\t", "\n", ":", "-", ","))
    words = body.decode(errors="surrogateescape").split(separator)
    at = chance.randrange(len(words))
    how = chance.randrange(4)
    if how == 0:
        words[at] = chance.choice(_TEXTS)
    elif how == 1:
        del words[at]
    elif how == 2:
        words.insert(at, chance.choice((*_TEXTS, words[at])))
    else:
        words[at] += chance.choice(_TEXTS)
    return separator.join(words).encode(errors="surrogatepass")


def _other_values(chance: random.Random, body: bytes) -> bytes:
    """Replace, remove or double values of the JSON document in a random line."""
    try:
        chosen = chance.choice(body.split(b"\n"))
        document = json.loads(chosen)
    except (ValueError, RecursionError):
        return _other_bytes(chance, body)
    marked, mark = json.dumps(_marked(chance, document)), '"MARK"'
    text = marked.replace(mark, chance.choice(VALUES))
    return body.replace(chosen, text.encode(errors="surrogatepass"), 1)


def _marked(chance: random.Random, document: Any) -> Any:
    """Return the document with a mark in place of one value, or with one value removed or added."""
    places = list(_places(document))
    if not places or chance.random() < 0.03:
        return "MARK"
    holder, key = chance.choice(places)
    how = chance.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[chance.choice(("MARK", "../x", "", "\n", key + "x", "x" * 300))] = holder.pop(key)
    elif how == 2 and isinstance(holder, list):
        holder.insert(key, "MARK")
    elif how == 3:
        other, name = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    else:
        holder[key] = "MARK"
    return document


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield document, key
            yield from _places(value)
    elif isinstance(document, list):
        for index, value in enumerate(document[:50]):
            yield document, index
            yield from _places(value)


def _binlog(chance: random.Random, kinds: tuple[tuple[int, bytes], ...]) -> bytes:
    file = File(version=chance.choice((b"9.7.4", b"11.8.2-MariaDB", b"", b"\xff" * 50)))
    for _ in range(chance.randrange(1, 8)):
        kind, body = chance.choice(kinds)
        if chance.random() < 0.6:
            body = _other_bytes(chance, body)
        file.add(kind, body[:70_000], server=chance.choice((0, 1, 2**32 - 1)))
    return bytes(file.data) if chance.random() < 0.8 else _other_bytes(chance, bytes(file.data))
