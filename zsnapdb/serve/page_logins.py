"""The pages of a login through an issuer. The browser visits the issuer, returns with a code, and gets a session.

Sources: OpenID Connect Core 1.0, section 3.1.2; RFC 7636; RFC 9207; RFC 9700, section 2.1.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode

from pydantic import SecretStr

from zsnapdb.base.errors import BusyError, NotAllowedError, UnknownNameError
from zsnapdb.base.patterns import printable
from zsnapdb.serve.helper_messages import HelperClient, KnownLogin, OpenSessionVerb
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, hashed, login_address, parsed, set_cookie
from zsnapdb.serve.page_visits import (
    BrowserSessions,
    PageAnswer,
    Redirect,
    end_credential,
    end_evicted,
    known_logins,
    opened_login,
)

SECONDS = 600
_MOST = 10_000
_RANDOM_BYTES = 32
_COOKIE = "zsnapdb_login"


def _random() -> str:
    return secrets.token_urlsafe(_RANDOM_BYTES)


@dataclass(frozen=True)
class PreLogin:
    """A login that a browser has started through this issuer. Its state, nonce and verifier are random and unique.

    `page` is the page to show after the login.
    """

    login: KnownLogin
    ends: float
    page: str = "/"
    state: str = field(default_factory=_random, repr=False)
    nonce: str = field(default_factory=_random, repr=False)
    verifier: str = field(default_factory=_random, repr=False)

    @property
    def challenge(self) -> str:
        """The SHA-256 of the verifier, which is sent to the issuer (RFC 7636, section 4.2)."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def is_state(self, given: str) -> bool:
        """Return whether an answer belongs to this login. The comparison takes constant time."""
        return hmac.compare_digest(self.state.encode(), given.encode(errors="replace"))


@dataclass(frozen=True)
class BegunLogin:
    """A login that has just started. This process stores only a digest of `id`."""

    id: SecretStr
    pre_login: PreLogin


@dataclass
class PreLogins:
    """All started logins of this process. If their number exceeds the maximum, the oldest are forgotten.

    `now` is a monotonic clock.
    """

    now: Callable[[], float] = time.monotonic
    most: int = _MOST
    _begun: dict[str, PreLogin] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, login: KnownLogin, page: str = "/") -> BegunLogin:
        """Start a login through this issuer."""
        begun = BegunLogin(SecretStr(_random()), PreLogin(login, self.now() + SECONDS, page))
        with self._lock:
            self._forget_ended()
            for key in list(self._begun)[: max(0, len(self._begun) + 1 - self.most)]:
                del self._begun[key]
            self._begun[hashed(begun.id.get_secret_value())] = begun.pre_login
        return begun

    def take(self, login_id: str) -> PreLogin | None:
        """Return and forget the login with this id; None if the id is unknown."""
        with self._lock:
            self._forget_ended()
            return self._begun.pop(hashed(login_id), None)

    def _forget_ended(self) -> None:
        now = self.now()
        for key in [key for key, one in self._begun.items() if one.ends <= now]:
            del self._begun[key]


_HINT = "start again at /login"
_MOST_OF_REASON = 300
_MOST_OF_ADDRESS = 3
"""Maximum number of running and waiting code exchanges per client address. The helper runs at most four at once."""
_OF_THIS_SITE = (None, "same-origin", "none")
"""The values of Sec-Fetch-Site for a request from this site or for a typed address (Fetch Metadata, W3C)."""


@dataclass(frozen=True)
class LoginPages:
    """The two pages of a login. `sessions` contains the sessions of all pages."""

    helper: HelperClient
    sessions: BrowserSessions
    pre_logins: PreLogins = field(default_factory=PreLogins)
    _finishing: Counter[str] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, request: PageRequest) -> Redirect:
        """Send the browser to the issuer, with a cookie that the browser needs when it returns."""
        # No other web site may start a login here. Otherwise a person would be logged in without having requested it.
        if request.headers.get("sec-fetch-site") not in _OF_THIS_SITE:
            return Redirect(login_address(request.page_after_login))
        if request.session_id and self.sessions.find(request.session_id) is not None:
            return Redirect(request.page_after_login)
        login = next((one for one in known_logins(self.helper) if one.name == request.path.get("login")), None)
        if login is None:
            raise RefusedPage.because(
                UnknownNameError("there is no such log-in", hint="/login lists the existing ones")
            )
        begun = self.pre_logins.begin(login, request.page_after_login)
        # Lax: the browser also sends the cookie when the issuer's web site redirects back.
        own_id, is_https = begun.id.get_secret_value(), _is_https(login)
        cookie = set_cookie(own_id, SECONDS, is_https=is_https, base=_COOKIE, same_site="Lax")
        return Redirect(_address(begun.pre_login), cookie)

    def finish(self, request: PageRequest) -> PageAnswer:
        """Open a session with a new id for the person whom the issuer authenticated.

        The answer is a page that forwards the browser automatically. After a redirect from another site, a browser
        sends the session cookie (SameSite=Strict) only with the next request from a page of this site.
        """
        begun = self._begun(request)
        _require_answer_to(begun, request)
        verb = parsed(
            OpenSessionVerb,
            {
                "login": begun.login.name,
                "issuer": begun.login.issuer,
                "code": request.query.get("code", ""),
                "verifier": begun.verifier,
                "nonce": begun.nonce,
            },
        )
        with self._place(request.address):
            opened = opened_login(self.helper, verb)
        session = self.sessions.open(opened.token, opened.subject, opened.seconds)
        if session is None:
            end_credential(self.helper, opened.token)
            raise RefusedPage.because(BusyError("too many people are logged in", hint="try again later"))
        end_evicted(self.helper, session)
        seconds = max(1, int(session.session.ends - self.sessions.now()))
        cookie = set_cookie(session.id.get_secret_value(), seconds, is_https=request.is_https)
        values = {"person": None, "csrf": "", "problem": None, "page": begun.page}
        return PageAnswer("logged_in.html", values, cookie=cookie)

    @contextlib.contextmanager
    def _place(self, address: str) -> Iterator[None]:
        """Limit the code exchanges that the helper runs for one client address. Raises RefusedPage at the limit."""
        with self._counting:
            if self._finishing[address] >= _MOST_OF_ADDRESS:
                raise RefusedPage.because(BusyError("too many log-ins come from your address", hint=_HINT))
            self._finishing[address] += 1
        try:
            yield
        finally:
            with self._counting:
                self._finishing[address] -= 1
                if not self._finishing[address]:
                    del self._finishing[address]

    def _begun(self, request: PageRequest) -> PreLogin:
        """Return the login that this browser started, and forget it, so that it cannot be finished twice."""
        for is_https in (True, False):
            login_id = request.cookie(_COOKIE, is_https=is_https)
            begun = self.pre_logins.take(login_id) if login_id else None
            if begun is not None and _is_https(begun.login) is is_https:
                return begun
        raise _refusal("this browser did not start this log-in in the last ten minutes, or has finished it")


def _require_answer_to(begun: PreLogin, request: PageRequest) -> None:
    """Raise RefusedPage unless this is the issuer's answer to this login, and the issuer permits the login.

    If an answer names an issuer (RFC 9207), it must be the issuer to which the browser was sent. Otherwise the return
    address identifies the issuer, because each issuer has its own return address.
    """
    query = request.query
    is_from_it = query.get("iss", begun.login.issuer) == begun.login.issuer
    if request.path.get("login") != begun.login.name or not is_from_it or not begun.is_state(query.get("state", "")):
        raise _refusal("this is not the answer to the log-in that this browser began")
    if "error" in query:
        said = ": ".join(query[name] for name in ("error", "error_description") if query.get(name))
        raise _refusal(f"{begun.login.name} does not let you in: {printable(said[:_MOST_OF_REASON])}")


def _address(begun: PreLogin) -> str:
    asked = {
        "response_type": "code",
        "client_id": begun.login.client_id,
        "redirect_uri": begun.login.redirect_uri,
        "scope": " ".join(begun.login.scopes),
        "state": begun.state,
        "nonce": begun.nonce,
        "code_challenge": begun.challenge,
        "code_challenge_method": "S256",
    }
    return f"{begun.login.authorization_endpoint}?{urlencode(asked)}"


def _is_https(login: KnownLogin) -> bool:
    """Return whether the configured return address uses HTTPS. Request headers are not considered."""
    return login.redirect_uri.startswith("https:")


def _refusal(message: str) -> RefusedPage:
    return RefusedPage.because(NotAllowedError(message, hint=_HINT))
