"""What the web process asks the helper about log-ins."""

from __future__ import annotations

from pydantic import ValidationError

from zsnapdb.base.errors import BusyError, ConsistencyError
from zsnapdb.serve.login_messages import (
    CloseSessionVerb,
    KnownLogin,
    KnownLogins,
    ListLoginsVerb,
    OpenedLogin,
    OpenSessionVerb,
)
from zsnapdb.serve.messages import FailureAnswer, HelperClient, ResultAnswer
from zsnapdb.serve.page_requests import RefusedPage
from zsnapdb.serve.verbs import HelperRequest
from zsnapdb.serve.visits import OpenedSession


def known_logins(helper: HelperClient) -> tuple[KnownLogin, ...]:
    """Return the issuers by which people log in; none if the helper does not say."""
    ending = helper.ask(HelperRequest(token="", verb=ListLoginsVerb()))
    if not isinstance(ending, ResultAnswer):
        return ()
    try:
        return KnownLogins.model_validate(ending.document).logins
    except ValidationError:
        return ()


def opened_login(helper: HelperClient, verb: OpenSessionVerb) -> OpenedLogin:
    """Return the session that the helper opens. RefusedPage has the reason if it does not."""
    ending = helper.ask(HelperRequest(token="", verb=verb))
    if isinstance(ending, FailureAnswer):
        raise RefusedPage(ending)
    if not isinstance(ending, ResultAnswer):
        raise RefusedPage.because(BusyError("the helper takes longer", hint="begin anew at /login"))
    try:
        return OpenedLogin.model_validate(ending.document)
    except ValidationError:
        error = ConsistencyError("the helper is of another release", hint="restart zsnapdb-serve")
        raise RefusedPage.because(error) from None


def end_evicted(helper: HelperClient, opened: OpenedSession) -> None:
    """End the tokens of the sessions that ended because this one was opened: nobody has them any more."""
    for token in opened.evicted:
        end_credential(helper, token.get_secret_value())


def end_credential(helper: HelperClient, token: str) -> None:
    """End the token of a session, if it was made by a log-in. One that an administrator made stays."""
    helper.ask(HelperRequest(token=token, verb=CloseSessionVerb()))
