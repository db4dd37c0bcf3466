"""The sessions of browsers, in the memory of the web process alone: whoever restarts it logs everybody out.

A session holds the token that its holder logged in with, because the helper is asked anew at each request: a token
that is revoked ends its session. The browser has a random id, of which the hash is kept here.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import SecretStr

SECONDS = 8 * 3600.0
"""The longest that a session lasts."""
_MOST = 1000
_MOST_OF_SUBJECT = 20
_MOST_OPERATIONS = 100
_RANDOM_BYTES = 32


@dataclass(frozen=True)
class BegunByBrowser:
    """What a session began: its words for people, and when by the clock of the sessions."""

    doing: str
    started: float


@dataclass
class BrowserSession:
    """Somebody who has logged in. `csrf` stands in each form of the session; no other page can know it."""

    token: SecretStr
    subject: str
    ends: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_RANDOM_BYTES), repr=False)
    _begun: dict[str, BegunByBrowser] = field(default_factory=dict)
    _to_show: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_csrf(self, given: str) -> bool:
        """Whether a form was of this session. The time that this takes says nothing about how much of it is right."""
        return hmac.compare_digest(self.csrf.encode(), given.encode())

    def began(self, operation: str, what: BegunByBrowser) -> None:
        """Remember what was begun, also if it is named again. Of many operations the oldest are forgotten."""
        with self._lock:
            if operation in self._begun:
                return
            self._begun[operation] = what
            self._to_show.add(operation)
            for old in list(self._begun)[:-_MOST_OPERATIONS]:
                del self._begun[old]
                self._to_show.discard(old)

    def begun(self, operation: str) -> BegunByBrowser | None:
        """Return what this session began under that id; None if it was another session."""
        with self._lock:
            return self._begun.get(operation)

    def shows_login(self, operation: str) -> bool:
        """Whether a login in the result is to be shown now: once, to the session that began the operation."""
        with self._lock:
            shows = operation in self._to_show
            self._to_show.discard(operation)
            return shows


@dataclass(frozen=True)
class OpenedSession:
    """A session that was just opened. `id` is known to the browser alone afterwards.

    `evicted` are the tokens of sessions of the same subject that ended for it.
    """

    id: SecretStr
    session: BrowserSession
    evicted: tuple[SecretStr, ...] = ()


@dataclass
class BrowserSessions:
    """All sessions of this process, at most so many. `now` is a clock that only goes on, in seconds."""

    now: Callable[[], float] = time.monotonic
    most: int = _MOST
    _open: dict[str, BrowserSession] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self, token: str, subject: str, seconds: float) -> OpenedSession | None:
        """Open a session with a new id for at most so many seconds; None if there are too many sessions.

        Of one subject the oldest session ends if there are too many, so nobody can take the places of all others. An
        issuer gives its people as many tokens as they want.
        """
        session_id = secrets.token_urlsafe(_RANDOM_BYTES)
        with self._lock:
            self._forget_ended()
            mine = [key for key, one in self._open.items() if one.subject == subject]
            over = mine[: max(0, len(mine) + 1 - _MOST_OF_SUBJECT)]
            evicted = tuple(self._open.pop(key).token for key in over)
            if len(self._open) >= self.most:
                return None
            session = BrowserSession(SecretStr(token), subject, self.now() + min(seconds, SECONDS))
            self._open[_hashed(session_id)] = session
        return OpenedSession(SecretStr(session_id), session, evicted)

    def find(self, session_id: str) -> BrowserSession | None:
        """Return the session of that id; None if there is none, or none any more."""
        with self._lock:
            self._forget_ended()
            return self._open.get(_hashed(session_id))

    def close(self, session_id: str) -> None:
        """End the session of that id, if there is one."""
        with self._lock:
            self._open.pop(_hashed(session_id), None)

    def _forget_ended(self) -> None:
        now = self.now()
        for key in [key for key, one in self._open.items() if one.ends <= now]:
            del self._open[key]


def _hashed(session_id: str) -> str:
    return hashlib.sha256(session_id.encode(errors="replace")).hexdigest()
