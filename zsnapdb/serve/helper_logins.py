"""The helper's answers about logins of people: the issuers, the start of a session, and its end.

The helper exchanges the code itself. The web process therefore needs no network access, and gets neither the id token
nor the client's secret. It gets only a session token, which this host created and can revoke.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from zsnapdb.base.errors import (
    BusyError,
    CommandTimeout,
    NotAllowedError,
    UnknownNameError,
    UnreachableError,
    ZsnapdbError,
)
from zsnapdb.config.serve import IssuerSettings, ServeSettings
from zsnapdb.serve import helper_messages
from zsnapdb.serve.helper_messages import (
    CloseSessionVerb,
    KnownLogin,
    KnownLogins,
    ListLoginsVerb,
    LoginVerb,
    OpenedLogin,
    OpenSessionVerb,
    RefusedRequest,
    ResultAnswer,
    failure_of,
)
from zsnapdb.serve.id_tokens import IdTokenHolder
from zsnapdb.serve.issuer_keys import IssuerKeys, LoginPlaces
from zsnapdb.serve.issuer_requests import CodeGrant, ExchangeCode
from zsnapdb.serve.tokens import CredentialHolder, TokenBook, TokenKind

if TYPE_CHECKING:
    from zsnapdb.serve.id_tokens import IdTokens

LOGINS_AT_ONCE = 4
"""Maximum number of simultaneous code exchanges.

Anyone who reaches the web process can start a login, so only a few exchanges may run.
"""
_LOGINS_WAITING = 8
"""Maximum number of logins that wait for their turn."""
_FOR_STRANGERS = frozenset(
    error.code for error in (BusyError, CommandTimeout, NotAllowedError, UnknownNameError, UnreachableError)
)
"""The errors that a person without a session may read: errors of the issuer, and the error of too many logins."""


@dataclass(frozen=True)
class LiveTokens:
    """The tokens of this host. A session is valid only while its issuer is configured for logins."""

    tokens: TokenBook
    issuers: Callable[[], Mapping[str, IssuerSettings]]

    def holder(self, text: str, now: datetime) -> CredentialHolder | None:
        """Return the holder of the token; None if the token is invalid.

        Raises ZsnapdbError if the tokens are unreadable.
        """
        found = self.tokens.holder(text, now)
        if found is None or found.kind is not TokenKind.SESSION:
            return found
        is_login = any(one.issuer == found.issuer and one.login is not None for one in self.issuers().values())
        return found if is_login else None


@dataclass
class LoginHandler:
    """The components that answer requests about logins.

    `settings` reads the configuration for each request, so that changes apply immediately.

    A login waits at most `patience` seconds for its turn.
    """

    settings: Callable[[], ServeSettings]
    tokens: TokenBook
    keys: IssuerKeys
    id_tokens: IdTokens
    exchange: ExchangeCode
    now: Callable[[], datetime]
    patience: float = 10.0
    _places: BoundedSemaphore = field(init=False, default_factory=lambda: BoundedSemaphore(LOGINS_AT_ONCE))
    _waiting: BoundedSemaphore = field(init=False, default_factory=lambda: BoundedSemaphore(_LOGINS_WAITING))

    def answer(self, token: str, verb: LoginVerb) -> ResultAnswer:
        """Execute the verb. Raises RefusedRequest or ZsnapdbError if nothing was done."""
        match verb:
            case ListLoginsVerb():
                return self._list()
            case OpenSessionVerb():
                return self._told_to_strangers(verb)
            case CloseSessionVerb():
                return ResultAnswer(document={"closed": self.tokens.close_session(token)})

    def _list(self) -> ResultAnswer:
        limits = self.settings()
        known = tuple(
            KnownLogin(
                name=name,
                issuer=issuer.issuer,
                authorization_endpoint=places.authorization_endpoint,
                client_id=issuer.login.client_id,
                redirect_uri=_redirect_uri(limits, name),
                scopes=("openid", *issuer.login.scopes),
            )
            for name, issuer in sorted(limits.issuer.items())
            if issuer.login is not None and (places := self.keys.login(name, issuer)) is not None
        )
        return ResultAnswer(document=KnownLogins(logins=known).model_dump(mode="json"))

    def _told_to_strangers(self, verb: OpenSessionVerb) -> ResultAnswer:
        """Open a session, or raise RefusedRequest. Details of an error on this host are only logged."""
        try:
            return self._open(verb)
        except RefusedRequest as refused:
            failure = refused.failure
        except ZsnapdbError as error:
            failure = failure_of(error)
        if failure.code in _FOR_STRANGERS:
            raise RefusedRequest(failure)
        print(f"a log-in by {verb.login}: {failure.message}", file=sys.stderr, flush=True)
        raise helper_messages.not_now("a session cannot be opened now")

    def _open(self, verb: OpenSessionVerb) -> ResultAnswer:
        limits = self.settings()
        issuer = limits.issuer.get(verb.login)
        if issuer is None or issuer.login is None:
            raise helper_messages.no_such("log-in", verb.login)
        if issuer.issuer != verb.issuer:
            # A code of one issuer must not be sent to another issuer.
            raise NotAllowedError(
                "the configuration of this log-in was changed meanwhile", hint="log in again at /login"
            )
        places = self.keys.login(verb.login, issuer)
        if places is None:
            raise UnreachableError(
                f"the log-in address of {verb.login} is not known", hint="the log of the helper says why"
            )
        holder = self._holder(verb, limits, issuer.login.client_id, places)
        made = self.tokens.open_session(holder.subject, holder.role, holder.issuer, limits.session, self.now())
        opened = OpenedLogin(subject=holder.subject, token=made.text.get_secret_value(), seconds=limits.session)
        return ResultAnswer(document=opened.model_dump(mode="json"))

    def _holder(
        self, verb: OpenSessionVerb, limits: ServeSettings, client_id: str, places: LoginPlaces
    ) -> IdTokenHolder:
        """Return the person whom the issuer authenticated, else raise NotAllowedError. The log contains the reason."""
        grant = CodeGrant(
            issuer=verb.issuer,
            client_id=client_id,
            token_endpoint=places.token_endpoint,
            redirect_uri=_redirect_uri(limits, verb.login),
            code=verb.code,
            verifier=verb.verifier,
        )
        self._wait_for_turn()
        try:
            id_token = self.exchange(verb.login, grant)
            holder = self.id_tokens.of_login(id_token, verb.login, verb.nonce, self.now())
        finally:
            self._places.release()
        if holder is None:
            raise NotAllowedError(
                f"{verb.login} did not confirm a user whom this host admits",
                hint="an administrator sees the reason in the log of the helper, and writes rules into serve.issuer",
            )
        return holder

    def _wait_for_turn(self) -> None:
        """Wait for a free slot for the exchange of a code, and reserve it. The caller must release the slot.

        Raises RefusedRequest if too many logins are waiting, or if no slot becomes free within `patience` seconds.
        """
        if self._places.acquire(blocking=False):
            return
        if not self._waiting.acquire(blocking=False):
            raise helper_messages.too_busy(f"{LOGINS_AT_ONCE + _LOGINS_WAITING} people are logging in")
        try:
            if not self._places.acquire(timeout=self.patience):
                raise helper_messages.too_busy(f"{LOGINS_AT_ONCE} people are logging in")
        finally:
            self._waiting.release()


def _redirect_uri(limits: ServeSettings, name: str) -> str:
    """Return the address to which the browser returns. It comes from the configuration, never from a request header."""
    return f"{limits.url}/login/{name}/callback"
