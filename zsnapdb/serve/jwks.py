"""The public keys in an issuer's key set (RFC 7517, RFC 7518, section 6), and the choice of the key for a token."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from zsnapdb.base.untrusted_text import exact_fields_of

_MOST_KEYS = 100
_BITS = range(2048, 8193)
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
"""The elliptic curve that an algorithm requires.

Algorithms that are not listed require an RSA key (RFC 7518, section 3.1).
"""
_Number = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,1400}$")]
KeyName = Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]


class IssuerKey(BaseModel):
    """A public signature key, RSA (`n`, `e`) or elliptic curve (`crv`, `x`, `y`). `kid` is the name of the key."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    kid: KeyName
    kty: Literal["RSA", "EC"]
    use: Literal["sig"] | None = None
    alg: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,20}$")] | None = None
    n: _Number | None = None
    e: _Number | None = None
    crv: Literal["P-256", "P-384", "P-521"] | None = None
    x: _Number | None = None
    y: _Number | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> IssuerKey:
        if self.kty == "EC":
            if None in (self.crv, self.x, self.y) or (self.n, self.e) != (None, None):
                raise ValueError("is not an EC key")
        elif self.n is None or self.e is None or (self.crv, self.x, self.y) != (None, None, None):
            raise ValueError("is not an RSA key")
        elif _number(self.n).bit_length() not in _BITS or _number(self.e) < 3 or not _number(self.e) % 2:
            raise ValueError("is too weak")
        return self

    def is_for(self, algorithm: str) -> bool:
        """Return whether the key checks signatures of this algorithm."""
        is_its_type = self.crv == CURVES[algorithm] if algorithm in CURVES else self.kty == "RSA"
        return is_its_type and self.alg in (None, algorithm)


def keys_in(body: bytes) -> tuple[IssuerKey, ...]:
    """Return the keys of a key set that can check signatures. Raises ValueError if the body is not a key set."""
    listed = exact_fields_of(body).get("keys")
    if not isinstance(listed, list) or len(listed) > _MOST_KEYS:
        raise ValueError(f"there is no list of at most {_MOST_KEYS} keys")
    found = []
    for one in listed:
        try:
            found.append(IssuerKey.model_validate(one))
        except ValidationError:
            continue
    return tuple(found)


def key_for(keys: Sequence[IssuerKey], kid: str, algorithm: str) -> IssuerKey | None:
    """Return the key with this name for this algorithm; None if no key or more than one key matches."""
    found = [one for one in keys if one.kid == kid and one.is_for(algorithm)]
    return found[0] if len(found) == 1 else None


def _number(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
