"""Derives the states of scheduled events from the statements in a binlog. Pure.

A replication applier disables each event that a statement creates or alters, even if the statement enables the event
(refman 8.4, "Replication of Invoked Features"). Therefore only the statements show the state of an event on the source.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import StrEnum


class EventState(StrEnum):
    """The state of a scheduled event.

    REPLICA means that the event is disabled on replicas, by a replication thread or by the statement that defines the
    event.
    """

    ENABLED = "ENABLED"
    DISABLED = "DISABLED"
    REPLICA = "REPLICA"

    @classmethod
    def of(cls, status: str) -> EventState:
        """Return the state for a status in information_schema.

        Releases have different texts for REPLICA.
        """
        return cls(status) if status in (cls.ENABLED, cls.DISABLED) else cls.REPLICA


EventKey = tuple[str, str]
"""The schema and the case-insensitive name of an event."""
EventStates = MutableMapping[EventKey, EventState]

_TOKEN = re.compile(
    r"""(?P<none>\s+|/\*M?![0-9]*|\*/|/\*.*?\*/|--\s.*?(?:\n|$)|\#.*?(?:\n|$))"""
    r"""|(?P<name>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")|(?P<word>[\w$]+)|(?P<mark>.)""",
    re.DOTALL,
)
"""The pattern of a token in a statement. Only the delimiters of version comments are skipped, not their content.

The server executes this content.
"""
_CONCERNS = re.compile(r"\b(EVENT|DATABASE|SCHEMA)\b", re.IGNORECASE)
_VERB = re.compile(r"\b(CREATE|ALTER|DROP)\b", re.IGNORECASE)
_MADE_BY_DEFINERS = frozenset({"PROCEDURE", "FUNCTION", "TRIGGER", "VIEW", "SQL", "AGGREGATE"})


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind == "word" else ""

    @property
    def identifier(self) -> str:
        """The name in the token. In the SQL mode ANSI_QUOTES, double quotes enclose a name."""
        if self.kind not in ("name", "text"):
            return self.text
        quote = self.text[0]
        return self.text[1:-1].replace(quote * 2, quote)


class _Reader:
    def __init__(self, statement: str) -> None:
        found = (_Token(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(statement))
        self.tokens = [token for token in found if token.kind != "none"]
        self.at = 0

    def ahead(self, distance: int = 0) -> _Token:
        at = self.at + distance
        return self.tokens[at] if 0 <= at < len(self.tokens) else _Token("end", "")

    def takes(self, *words: str) -> bool:
        is_next = tuple(self.ahead(distance).word for distance in range(len(words))) == words
        self.at += len(words) if is_next else 0
        return is_next

    def take_definer(self) -> None:
        if self.takes("DEFINER"):
            while self.ahead().kind != "end" and self.ahead().word not in _MADE_BY_DEFINERS:
                if self.ahead().word == "EVENT" and self.ahead(-1).text not in ("=", "@"):
                    return
                self.at += 1

    def take_name(self, schema: str) -> EventKey:
        """Skip a name, and return it with its schema. If the statement contains no schema, `schema` is returned."""
        first = self.ahead().identifier
        self.at += 1
        if self.ahead().text != ".":
            return schema, first.lower()
        self.at += 2
        return first, self.ahead(-1).identifier.lower()


def follow(states: EventStates, schema: str, statement: str) -> None:
    """Change `states` in the same way as the statement changed the states of events on the source.

    `schema` is the session's default schema.
    """
    if _CONCERNS.search(statement) is None or _VERB.search(statement) is None:
        return
    reader = _Reader(statement)
    verb = reader.ahead().word
    if verb not in ("CREATE", "ALTER", "DROP"):
        return
    reader.at += 1
    replaces = reader.takes("OR", "REPLACE")
    reader.take_definer()
    if reader.takes("DATABASE") or reader.takes("SCHEMA"):
        if verb == "DROP" or replaces:
            _ = reader.takes("IF", "EXISTS")
            gone = reader.ahead().identifier
            for key in [key for key in states if key[0] == gone]:
                del states[key]
    elif reader.takes("EVENT"):
        _follow_event(states, schema, verb, reader, replaces=replaces)


def _follow_event(states: EventStates, schema: str, verb: str, reader: _Reader, *, replaces: bool) -> None:
    may_be_there = reader.takes("IF", "NOT", "EXISTS")
    _ = reader.takes("IF", "EXISTS")
    key = reader.take_name(schema)
    if verb == "DROP":
        states.pop(key, None)
    elif verb == "CREATE":
        if not (may_be_there and key in states) or replaces:
            states[key] = _parse_state(reader)[0] or EventState.ENABLED
    else:
        state, renamed = _parse_state(reader, schema)
        before = states.pop(key, None)
        after = state or before
        if after is not None:
            states[renamed or key] = after


def _parse_state(reader: _Reader, schema: str = "") -> tuple[EventState | None, EventKey | None]:
    """Return the state and the new name in the rest of a statement, up to the body of the event."""
    state, renamed = None, None
    while reader.ahead().kind != "end" and not reader.takes("DO"):
        if reader.takes("RENAME", "TO"):
            renamed = reader.take_name(schema)
        elif reader.takes("ENABLE"):
            state = EventState.ENABLED
        elif reader.takes("DISABLE"):
            is_replica = reader.takes("ON", "SLAVE") or reader.takes("ON", "REPLICA")
            state = EventState.REPLICA if is_replica else EventState.DISABLED
        else:
            reader.at += 1
    return state, renamed
