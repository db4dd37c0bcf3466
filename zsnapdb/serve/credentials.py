"""Who asks: the holder of a token of zsnapdb, or of an id token of a configured issuer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from zsnapdb.serve.roles import Role


class CredentialHolder(Protocol):
    """Who asks, what he may, which issuer vouches for him ("": zsnapdb itself), and until when."""

    @property
    def subject(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def issuer(self) -> str: ...

    @property
    def expires(self) -> datetime: ...


class CredentialBook(Protocol):
    """Knows the holders of bearer credentials."""

    def holder(self, text: str, now: datetime) -> CredentialHolder | None:
        """Return who holds the credential of that text now; None if it is good for nothing. ZsnapdbError."""
        ...


@dataclass(frozen=True)
class EveryCredential:
    """Tokens of zsnapdb, and id tokens. They are told apart by their form: no token of zsnapdb has a dot."""

    tokens: CredentialBook
    id_tokens: CredentialBook

    def holder(self, text: str, now: datetime) -> CredentialHolder | None:
        """Return who holds the credential. Each is looked for in one of the books alone."""
        return (self.id_tokens if "." in text else self.tokens).holder(text, now)
