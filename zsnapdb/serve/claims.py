"""What the claims of an id token whose signature is good come to: for whom it stands, or why it is refused. Pure.

Source: RFC 7519, section 4.1; OpenID Connect Core 1.0, sections 2 and 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from zsnapdb.base.subject import is_subject
from zsnapdb.config.serve import SUBJECT_OF_EMAIL, IssuerRule, IssuerSettings
from zsnapdb.serve.roles import Role

LEEWAY = 60.0
"""How many seconds the clocks of issuer and host may differ."""


_EMAIL, _AZP = "email", "azp"
"""`azp` is the client to which a token was issued (OpenID Connect Core 1.0, section 2)."""


class IdTokenRefusal(StrEnum):
    """Why an id token is refused."""

    FORM = "it is no signed token of this form"
    ISSUER = "its issuer is not configured"
    HEADER = "its header asks for what is not known here"
    ALGORITHM = "its algorithm is not among serve.issuer.NAME.algorithms"
    KEY = "its key is not among the known keys of the issuer"
    SIGNATURE = "its signature is wrong"
    CLAIMS = "it has no exp, iat, nbf or aud of the right form"
    AUDIENCE = "it is for another audience"
    EXPIRED = "it has expired"
    EARLY = "it is not valid yet: compare the clocks"
    OLD = "it was issued more than serve.issuer.NAME.longest_age ago"
    PARTY = "it is for several audiences, and neither its azp nor a rule that names azp says that it is for this one"
    NONCE = "it is the answer to another log-in: its nonce differs"
    RULE = "no rule of serve.issuer.NAME.allow has its claims"
    EMAIL = "its issuer has verified no mail address that a subject can have"


@dataclass(frozen=True)
class IdTokenHolder:
    """For whom an id token stands, who says so, and until when it is good."""

    subject: str
    role: Role
    issuer: str
    expires: datetime


def judged(claims: Mapping[str, object], issuer: IssuerSettings, now: float) -> IdTokenHolder | IdTokenRefusal:
    """Return for whom the claims of a token stand at the time `now` (seconds since 1970), or why for nobody."""
    if claims.get("iss") != issuer.issuer:
        return IdTokenRefusal.ISSUER
    refused = _of_audience(claims.get("aud"), issuer.audience) or _of_time(claims, issuer.longest_age, now)
    if refused is not None:
        return refused
    rule = next((one for one in issuer.allow if _fits(claims, one)), None)
    if rule is None:
        return IdTokenRefusal.RULE
    # Each of several audiences has the token, and could use it here.
    if _is_for_several(claims) and claims.get(_AZP) != issuer.audience and _AZP not in rule.claims:
        return IdTokenRefusal.PARTY
    # Where an issuer verifies no address, whoever has an account writes any into it.
    if _EMAIL in rule.claims and not _is_verified(claims):
        return IdTokenRefusal.EMAIL
    subject = rule.subject if rule.subject != SUBJECT_OF_EMAIL else _of_email(claims)
    if subject is None:
        return IdTokenRefusal.EMAIL
    return IdTokenHolder(subject, Role(rule.role), issuer.issuer, _end(claims, issuer.longest_age))


def _end(claims: Mapping[str, object], longest_age: float) -> datetime:
    """Return until when a token is good whose times are."""
    times = _seconds(claims.get("exp")), _seconds(claims.get("iat"))
    expires, issued = (math.inf if one is None else one for one in times)
    return datetime.fromtimestamp(min(expires, issued + longest_age), UTC)


def _of_audience(given: object, audience: str) -> IdTokenRefusal | None:
    if isinstance(given, str):
        return None if given == audience else IdTokenRefusal.AUDIENCE
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        return IdTokenRefusal.CLAIMS
    return None if audience in given else IdTokenRefusal.AUDIENCE


def _is_for_several(claims: Mapping[str, object]) -> bool:
    audience = claims.get("aud")
    return isinstance(audience, list) and len({str(one) for one in audience}) > 1


def _of_time(claims: Mapping[str, object], longest_age: float, now: float) -> IdTokenRefusal | None:
    expires, issued = _seconds(claims.get("exp")), _seconds(claims.get("iat"))
    begins = _seconds(claims["nbf"]) if "nbf" in claims else -math.inf
    if expires is None or issued is None or begins is None:
        return IdTokenRefusal.CLAIMS
    if expires <= now - LEEWAY:
        return IdTokenRefusal.EXPIRED
    if begins > now + LEEWAY or issued > now + LEEWAY:
        return IdTokenRefusal.EARLY
    return IdTokenRefusal.OLD if issued < now - longest_age - LEEWAY else None


def _seconds(given: object) -> float | None:
    """Return a time of a claim in seconds since 1970; None if it is no number. A huge one is infinite."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf


def _fits(claims: Mapping[str, object], rule: IssuerRule) -> bool:
    return all(_has(claims.get(name), value) for name, value in rule.claims.items())


def _has(given: object, value: bool | int | str) -> bool:
    """Whether a claim has the value. True, 1 and "true" are three values."""
    several = given if isinstance(given, list) else [given]
    return any(type(one) is type(value) and one == value for one in several)


def _is_verified(claims: Mapping[str, object]) -> bool:
    """Whether the issuer has verified the mail address of the token (OpenID Connect Core 1.0, section 5.1)."""
    return claims.get("email_verified") is True


def _of_email(claims: Mapping[str, object]) -> str | None:
    email = claims.get(_EMAIL)
    if not _is_verified(claims) or not isinstance(email, str):
        return None
    return f"user:{email}" if is_subject(f"user:{email}") else None
