"""Id tokens of configured issuers as bearer credentials: JSON web tokens whose signature an issuer's key has made.

A token says which issuer and which key of it to try. Nothing else of it is believed before its signature is checked.
Keys, addresses and certificates in a token are never used. Source: RFC 7515, RFC 7519, RFC 8725.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from zsnapdb.base.foreign_text import exact_fields_of
from zsnapdb.config.serve import IssuerSettings
from zsnapdb.serve.claims import IdTokenHolder, IdTokenRefusal, judged
from zsnapdb.serve.issuer_keys import IssuerKeys
from zsnapdb.serve.jwks import IssuerKey, KeyName, key_for
from zsnapdb.serve.login_claims import judged_login

_FORM = re.compile(r"([A-Za-z0-9_-]{1,4096})\.([A-Za-z0-9_-]{1,8192})\.([A-Za-z0-9_-]{1,1400})")
_MOST_HEADER = 4096
_QUIET = timedelta(minutes=1)
"""How long a reason that was told is not told again."""


class _TokenHeader(BaseModel):
    """What is read of a header. What must be understood (`crit`) is not, and a token of another type is none."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    alg: StrictStr
    kid: KeyName
    typ: StrictStr = Field("JWT", pattern=r"^(?i:(application/)?jwt)$")
    crit: None = Field(None, exclude=True)
    b64: None = Field(None, exclude=True)


@dataclass
class IdTokens:
    """The issuers that are configured, and their keys. The log is told why a token was refused, now and then."""

    issuers: Callable[[], Mapping[str, IssuerSettings]]
    keys: IssuerKeys
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    _told: dict[tuple[str, IdTokenRefusal], datetime] = field(init=False, default_factory=dict)

    def holder(self, text: str, now: datetime) -> IdTokenHolder | None:
        """Return for whom the token stands; None if it is refused. ZsnapdbError if the configuration cannot be read."""
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
        """Return who has logged in by the issuer of that name; None if its token is refused, or no answer to that.

        ZsnapdbError if the configuration cannot be read.
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
        return claims if isinstance(claims, IdTokenRefusal) else judged(claims, issuer, now.timestamp())

    def _claims(self, text: str, name: str, issuer: IssuerSettings) -> Mapping[str, object] | IdTokenRefusal:
        """Return what a token says that a key of the issuer has signed. Whom it is for is not looked at."""
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
        """Tell the log why, without a word of the token: whoever sends tokens chooses these words."""
        last = self._told.get((name, refusal))
        if last is None or not timedelta(0) <= now - last < _QUIET:
            self._told[name, refusal] = now
            self.tell(f"an id token of serve.issuer.{name} is refused: {refusal}")


def signed_payload(text: str, key: IssuerKey, algorithm: str) -> bytes | None:
    """Return what a token says, if that key has signed it with that algorithm; else None."""
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = _MOST_HEADER
    kind = RSAKey if key.kty == "RSA" else ECKey
    try:
        public = kind.import_key(key.model_dump(exclude_none=True))
        return jws.deserialize_compact(text, public, registry=registry).payload
    except (JoseError, ValueError, TypeError):
        return None


def _issuer_named_in(text: str) -> str | None:
    """Return whose token it says to be; None if it is no token. Whether that is so is not known yet."""
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
