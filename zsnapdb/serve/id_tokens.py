"""Id tokens of configured issuers as bearer credentials: JSON web tokens that a key of the issuer has signed.

A token contains the names of its issuer and key. Nothing else in the token is trusted before the signature is checked.
Keys, addresses and certificates in a token are never used. Sources: RFC 7515, RFC 7519, RFC 8725.
"""

from __future__ import annotations

import base64
import hmac
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from zsnapdb.base.patterns import is_subject
from zsnapdb.base.untrusted_text import exact_fields_of
from zsnapdb.config.serve import SUBJECT_OF_EMAIL, IssuerRule, IssuerSettings
from zsnapdb.serve.issuer_keys import IssuerKeys
from zsnapdb.serve.jwks import IssuerKey, KeyName, key_for
from zsnapdb.serve.roles import Role

LEEWAY = 60.0
"""Maximum difference between the clocks of issuer and host, in seconds."""


_EMAIL, _AZP = "email", "azp"
"""`azp` is the client to which a token was issued (OpenID Connect Core 1.0, section 2)."""


class IdTokenRefusal(StrEnum):
    """The reason why an id token is refused."""

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
    """The subject of an id token, its role, the issuer that authenticated it, and the end of its validity."""

    subject: str
    role: Role
    issuer: str
    expires: datetime


def judge_claims(claims: Mapping[str, object], issuer: IssuerSettings, now: float) -> IdTokenHolder | IdTokenRefusal:
    """Return the holder of a token with the claims at the time `now` (seconds since 1970), or why it is refused."""
    if claims.get("iss") != issuer.issuer:
        return IdTokenRefusal.ISSUER
    refused = _of_audience(claims.get("aud"), issuer.audience) or _of_time(claims, issuer.longest_age, now)
    if refused is not None:
        return refused
    rule = next((one for one in issuer.allow if _fits(claims, one)), None)
    if rule is None:
        return IdTokenRefusal.RULE
    # Each audience in a token can have the token, and could use the token on this host.
    if _is_for_several(claims) and claims.get(_AZP) != issuer.audience and _AZP not in rule.claims:
        return IdTokenRefusal.PARTY
    # If an issuer does not verify mail addresses, an account's owner can enter any address.
    if _EMAIL in rule.claims and not _is_verified(claims):
        return IdTokenRefusal.EMAIL
    subject = rule.subject if rule.subject != SUBJECT_OF_EMAIL else _of_email(claims)
    if subject is None:
        return IdTokenRefusal.EMAIL
    return IdTokenHolder(subject, Role(rule.role), issuer.issuer, _end(claims, issuer.longest_age))


def _end(claims: Mapping[str, object], longest_age: float) -> datetime:
    """Return when a token expires. The caller has already checked the token's times."""
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
    """Return a claim's time in seconds since 1970 (None: it is not a number). A huge number is treated as infinite."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        return float(given)
    except OverflowError:
        return math.inf if given > 0 else -math.inf


def _fits(claims: Mapping[str, object], rule: IssuerRule) -> bool:
    return all(_has(claims.get(name), value) for name, value in rule.claims.items())


def _has(given: object, value: bool | int | str) -> bool:
    """Return whether a claim, or one of its elements, equals the value. True, 1 and "true" are different values."""
    several = given if isinstance(given, list) else [given]
    return any(type(one) is type(value) and one == value for one in several)


def _is_verified(claims: Mapping[str, object]) -> bool:
    """Return whether the issuer has verified the mail address (OpenID Connect Core 1.0, section 5.1)."""
    return claims.get("email_verified") is True


def _of_email(claims: Mapping[str, object]) -> str | None:
    email = claims.get(_EMAIL)
    if not _is_verified(claims) or not isinstance(email, str):
        return None
    return f"user:{email}" if is_subject(f"user:{email}") else None


LONGEST_AGE = 600.0
"""Maximum age in seconds of an id token that opens a session. The issuer must have created the token for this login."""


def judged_login(
    claims: Mapping[str, object], issuer: IssuerSettings, client_id: str, nonce: str, now: float
) -> IdTokenHolder | IdTokenRefusal:
    """Return the holder of a new session at the time `now` (seconds since 1970), or why the token is refused.

    The audience must be the client id. Bearer credentials have another audience, so the token of a program cannot open
    a session.
    """
    of_login = {"audience": client_id, "longest_age": min(issuer.longest_age, LONGEST_AGE)}
    judgement = judge_claims(claims, issuer.model_copy(update=of_login), now)
    if isinstance(judgement, IdTokenRefusal):
        return judgement
    if not _is_for_client_alone(claims, client_id):
        return IdTokenRefusal.AUDIENCE
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), nonce.encode()):
        return IdTokenRefusal.NONCE
    return judgement


def _is_for_client_alone(claims: Mapping[str, object], client_id: str) -> bool:
    """Return whether the token was issued to this client. If it has several audiences, `azp` must name the client."""
    audience = claims.get("aud")
    is_for_several = isinstance(audience, list) and len(audience) > 1
    return claims.get("azp") == client_id if is_for_several or "azp" in claims else True


_FORM = re.compile(r"([A-Za-z0-9_-]{1,4096})\.([A-Za-z0-9_-]{1,8192})\.([A-Za-z0-9_-]{1,1400})")
_MOST_HEADER = 4096
_QUIET = timedelta(minutes=1)
"""Seconds during which the same reason is not logged again."""


class _TokenHeader(BaseModel):
    """The fields of a token's header that are read.

    A header is refused if its type is not JWT, or if it requires an extension (`crit`).
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    alg: StrictStr
    kid: KeyName
    typ: StrictStr = Field("JWT", pattern=r"^(?i:(application/)?jwt)$")
    crit: None = Field(None, exclude=True)
    b64: None = Field(None, exclude=True)


@dataclass
class IdTokens:
    """The configured issuers and their keys. `tell` logs each reason for a refusal at most once a minute per issuer."""

    issuers: Callable[[], Mapping[str, IssuerSettings]]
    keys: IssuerKeys
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    _told: dict[tuple[str, IdTokenRefusal], datetime] = field(init=False, default_factory=dict)

    def holder(self, text: str, now: datetime) -> IdTokenHolder | None:
        """Return the holder of the token; None if the token is refused.

        Raises ZsnapdbError if the configuration cannot be read.
        """
        named = _issuer_named_in(text)
        issuers = self.issuers() if named is not None else {}
        known = next(((name, one) for name, one in issuers.items() if one.issuer == named), None)
        if known is None:
            return None
        judgement = self._judged(text, *known, now)
        if isinstance(judgement, IdTokenHolder):
            return judgement
        self._say(known[0], judgement, now)
        return None

    def of_login(self, text: str, name: str, nonce: str, now: datetime) -> IdTokenHolder | None:
        """Return the person who has logged in through this issuer; None if the token is refused.

        A token with another nonce belongs to another login, and is refused. Raises ZsnapdbError if the configuration
        cannot be read.
        """
        issuer = self.issuers().get(name)
        if issuer is None or issuer.login is None:
            return None
        claims = self._claims(text, name, issuer) if _FORM.fullmatch(text) else IdTokenRefusal.FORM
        if isinstance(claims, IdTokenRefusal):
            judgement: IdTokenHolder | IdTokenRefusal = claims
        else:
            judgement = judged_login(claims, issuer, issuer.login.client_id, nonce, now.timestamp())
        if isinstance(judgement, IdTokenHolder):
            return judgement
        self._say(name, judgement, now)
        return None

    def _judged(self, text: str, name: str, issuer: IssuerSettings, now: datetime) -> IdTokenHolder | IdTokenRefusal:
        claims = self._claims(text, name, issuer)
        return claims if isinstance(claims, IdTokenRefusal) else judge_claims(claims, issuer, now.timestamp())

    def _claims(self, text: str, name: str, issuer: IssuerSettings) -> Mapping[str, object] | IdTokenRefusal:
        """Return the claims that the issuer signed, or the reason for a refusal. Audience and times are unchecked."""
        try:
            header = _TokenHeader.model_validate(exact_fields_of(_decoded(text.split(".")[0])))
        except (ValueError, ValidationError):
            return IdTokenRefusal.HEADER
        if header.alg not in issuer.algorithms:
            return IdTokenRefusal.ALGORITHM
        key = key_for(self.keys.of(name, issuer), header.kid, header.alg)
        if key is None:
            self.keys.ask_again(name)
            key = key_for(self.keys.of(name, issuer), header.kid, header.alg)
        if key is None:
            return IdTokenRefusal.KEY
        payload = signed_payload(text, key, header.alg)
        if payload is None:
            return IdTokenRefusal.SIGNATURE
        try:
            return exact_fields_of(payload)
        except ValueError:
            return IdTokenRefusal.FORM

    def _say(self, name: str, refusal: IdTokenRefusal, now: datetime) -> None:
        """Log the reason without any text from the token, because the token's sender can choose that text."""
        last = self._told.get((name, refusal))
        if last is None or not timedelta(0) <= now - last < _QUIET:
            self._told[name, refusal] = now
            self.tell(f"an id token of serve.issuer.{name} is refused: {refusal}")


def signed_payload(text: str, key: IssuerKey, algorithm: str) -> bytes | None:
    """Return the payload of a token if this key has signed it with this algorithm; else None."""
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = _MOST_HEADER
    kind = RSAKey if key.kty == "RSA" else ECKey
    try:
        public = kind.import_key(key.model_dump(exclude_none=True))
        return jws.deserialize_compact(text, public, registry=registry).payload
    except (JoseError, ValueError, TypeError):
        return None


def _issuer_named_in(text: str) -> str | None:
    """Return the issuer that an unchecked token names; None if the text is not a token."""
    parts = _FORM.fullmatch(text)
    if parts is None:
        return None
    try:
        named = exact_fields_of(_decoded(parts[2])).get("iss")
    except ValueError:
        return None
    return named if isinstance(named, str) else None


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
