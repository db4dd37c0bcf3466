"""Whether the claims of an id token whose signature is good are the answer to this very log-in. Pure.

Source: OpenID Connect Core 1.0, section 3.1.3.7.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from zsnapdb.config.serve import IssuerSettings
from zsnapdb.serve.claims import IdTokenHolder, IdTokenRefusal, judged

LONGEST_AGE = 600.0
"""How long after its issue an id token opens a session, in seconds: it was made for this log-in, a moment ago."""


def judged_login(
    claims: Mapping[str, object], issuer: IssuerSettings, client_id: str, nonce: str, now: float
) -> IdTokenHolder | IdTokenRefusal:
    """Return for whom a session is opened at the time `now` (seconds since 1970), or why for nobody.

    The audience is the client, not that of bearer credentials: no token of a program opens a session.
    """
    of_login = {"audience": client_id, "longest_age": min(issuer.longest_age, LONGEST_AGE)}
    judgement = judged(claims, issuer.model_copy(update=of_login), now)
    if isinstance(judgement, IdTokenRefusal):
        return judgement
    if not _is_for_client_alone(claims, client_id):
        return IdTokenRefusal.AUDIENCE
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), nonce.encode()):
        return IdTokenRefusal.NONCE
    return judgement


def _is_for_client_alone(claims: Mapping[str, object], client_id: str) -> bool:
    """Whether the token was issued to this client. One for several audiences must say to which of them."""
    audience = claims.get("aud")
    is_for_several = isinstance(audience, list) and len(audience) > 1
    return claims.get("azp") == client_id if is_for_several or "azp" in claims else True
