"""Log-ins that browsers began and issuers have not answered yet, in the memory of the web process alone.

Each belongs to the one browser that has its cookie, can be finished once, and is forgotten after ten minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import SecretStr

from zsnapdb.serve.login_messages import KnownLogin

SECONDS = 600
_MOST = 10_000
_RANDOM_BYTES = 32
_COOKIE = "zsnapdb_login"
_SECURE_COOKIE = f"__Host-{_COOKIE}"
"""By its prefix a browser takes this cookie over https alone, for this host alone (RFC 6265bis, 4.1.3.2)."""
_ID = re.compile(r"[A-Za-z0-9_-]{20,100}")


def _random() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)


@dataclass(frozen=True)
class PreLogin:
    """A log-in that a browser began by that issuer. Its texts are random, and known to no other log-in."""

    login: KnownLogin
    ends: float
    state: str = field(default_factory=_random, repr=False)
    nonce: str = field(default_factory=_random, repr=False)
    verifier: str = field(default_factory=_random, repr=False)

    @property
    def challenge(self) -> str:
        """What the issuer is told of the verifier: its SHA-256 (RFC 7636, section 4.2)."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def is_state(self, given: str) -> bool:
        """Whether an answer is to this log-in. The time that this takes says nothing about how much of it is right."""
        return hmac.compare_digest(self.state.encode(), given.encode(errors="replace"))


@dataclass(frozen=True)
class BegunLogin:
    """A log-in that just began. `id` is known to the browser alone afterwards."""

    id: SecretStr
    pre_login: PreLogin


@dataclass
class PreLogins:
    """All of them in this process; of too many the oldest are forgotten. `now` is a clock that only goes on."""

    now: Callable[[], float] = time.monotonic
    most: int = _MOST
    _begun: dict[str, PreLogin] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, login: KnownLogin) -> BegunLogin:
        """Begin a log-in by that issuer."""
        begun = BegunLogin(SecretStr(_random()), PreLogin(login, self.now() + SECONDS))
        with self._lock:
            self._forget_ended()
            for key in list(self._begun)[: max(0, len(self._begun) + 1 - self.most)]:
                del self._begun[key]
            self._begun[_hashed(begun.id.get_secret_value())] = begun.pre_login
        return begun

    def take(self, login_id: str) -> PreLogin | None:
        """Return the log-in of that id, this once; None if there is none, or none any more."""
        with self._lock:
            self._forget_ended()
            return self._begun.pop(_hashed(login_id), None)

    def _forget_ended(self) -> None:
        now = self.now()
        for key in [key for key, one in self._begun.items() if one.ends <= now]:
            del self._begun[key]


def cookie_of(login_id: str, *, is_https: bool) -> str:
    """Return the header that gives a browser its log-in. Lax: the issuer's site sends the browser back with it."""
    name, secure = (_SECURE_COOKIE, "; Secure") if is_https else (_COOKIE, "")
    return f"{name}={login_id}; Path=/; Max-Age={SECONDS}; HttpOnly; SameSite=Lax{secure}"


def id_in(cookies: str, *, is_https: bool) -> str:
    """Return the id of a log-in that a browser says to have begun; "" if it says none."""
    wanted = _SECURE_COOKIE if is_https else _COOKIE
    for pair in cookies.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted and _ID.fullmatch(value):
            return value
    return ""


def _hashed(login_id: str) -> str:
    return hashlib.sha256(login_id.encode(errors="replace")).hexdigest()
