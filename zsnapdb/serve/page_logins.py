"""The pages of a log-in by an issuer: the browser is sent there, comes back with a code, and gets a session.

Sources: OpenID Connect Core 1.0, section 3.1.2; RFC 7636; RFC 9207; RFC 9700, section 2.1.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode

from zsnapdb.base.errors import BusyError, NotAllowedError, UnknownNameError
from zsnapdb.base.patterns import printable
from zsnapdb.serve.browser_sessions import BrowserSessions
from zsnapdb.serve.helper_client import HelperClient
from zsnapdb.serve.login_client import end_credential, end_evicted, known_logins, opened_login
from zsnapdb.serve.login_messages import KnownLogin, OpenSessionVerb
from zsnapdb.serve.page_requests import PageRequest, RefusedPage, parsed, set_cookie
from zsnapdb.serve.pre_logins import PreLogin, PreLogins, cookie_of, id_in
from zsnapdb.serve.visits import OtherPlace, PageAnswer

_HINT = "begin anew at /login"
_MOST_OF_REASON = 300
_MOST_OF_ADDRESS = 3
"""How many codes from one address are exchanged, or wait for that, at once: the helper has four places."""
_OF_THIS_SITE = (None, "same-origin", "none")
"""What Sec-Fetch-Site says of a page of this site, and of an address that somebody typed (Fetch Metadata, W3C)."""


@dataclass(frozen=True)
class LoginPages:
    """The two pages of a log-in. `sessions` are those of all pages."""

    helper: HelperClient
    sessions: BrowserSessions
    pre_logins: PreLogins = field(default_factory=PreLogins)
    _finishing: Counter[str] = field(default_factory=Counter)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, request: PageRequest) -> OtherPlace:
        """Send the browser to the issuer. It gets a cookie, with which alone it can come back."""
        # Other sites begin no log-in here: somebody would be logged in who did not ask for it.
        if request.headers.get("sec-fetch-site") not in _OF_THIS_SITE:
            return OtherPlace("/login")
        if request.session_id and self.sessions.find(request.session_id) is not None:
            return OtherPlace("/")
        login = next((one for one in known_logins(self.helper) if one.name == request.path.get("login")), None)
        if login is None:
            raise RefusedPage.because(UnknownNameError("there is no such log-in", hint="/login shows those that are"))
        begun = self.pre_logins.begin(login)
        cookie = cookie_of(begun.id.get_secret_value(), is_https=_is_https(login))
        return OtherPlace(_address(begun.pre_login), cookie)

    def finish(self, request: PageRequest) -> PageAnswer:
        """Open a session with a new id for whom the issuer vouches.

        The answer is a page that leads on by itself: a browser that comes from another site sends the cookie of its
        session (SameSite=Strict) only after a page of this site.
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
        return PageAnswer("logged_in.html", {"person": None, "csrf": "", "problem": None}, cookie=cookie)

    @contextlib.contextmanager
    def _place(self, address: str) -> Iterator[None]:
        """Let one address have no more than its share of the places in which the helper exchanges codes."""
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
        """Return the log-in that this browser began. It is taken: whatever comes of it, it is not finished again."""
        for is_https in (True, False):
            login_id = id_in(request.headers.get("cookie", ""), is_https=is_https)
            begun = self.pre_logins.take(login_id) if login_id else None
            if begun is not None and _is_https(begun.login) is is_https:
                return begun
        raise _refused("this browser did not begin this log-in in the last ten minutes, or has finished it")


def _require_answer_to(begun: PreLogin, request: PageRequest) -> None:
    """Raise RefusedPage unless an issuer answers to this very log-in, and permits it.

    An issuer that says who it is (RFC 9207) must be the one that was asked. Each has an address of its own to come back
    to, so one that does not say it cannot be taken for another either.
    """
    query = request.query
    is_from_it = query.get("iss", begun.login.issuer) == begun.login.issuer
    if request.path.get("login") != begun.login.name or not is_from_it or not begun.is_state(query.get("state", "")):
        raise _refused("this is not the answer to the log-in that this browser began")
    if "error" in query:
        said = ": ".join(query[name] for name in ("error", "error_description") if query.get(name))
        raise _refused(f"{begun.login.name} does not let you in: {printable(said[:_MOST_OF_REASON])}")


def _address(begun: PreLogin) -> str:
    """Return the address at the issuer that asks for a log-in."""
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
    """Whether browsers come back by https: the configuration says so, and no header of a request."""
    return login.redirect_uri.startswith("https:")


def _refused(message: str) -> RefusedPage:
    return RefusedPage.because(NotAllowedError(message, hint=_HINT))
