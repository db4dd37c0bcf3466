"""Views of the tokens of `zsnapdb serve`. A token itself is shown once, by the command that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.planning.clone.lease import stamp
from zsnapdb.report.parts import Part, Table, TabularView
from zsnapdb.report.view import View
from zsnapdb.serve.tokens import NewToken, StoredToken


class TokenFields(TypedDict):
    """A token, without its text. `revoked` is null if it is not revoked."""

    id: str
    subject: str
    role: str
    created: str
    expires: str
    revoked: str | None


class NewTokenDocument(TypedDict):
    """A token that was just made. `text` is shown this once."""

    token: TokenFields
    text: str


class TokensDocument(TypedDict):
    """The tokens of this host."""

    tokens: list[TokenFields]


class RevokedTokenDocument(TypedDict):
    """A token that was revoked."""

    token: TokenFields


def _fields(token: StoredToken) -> TokenFields:
    return {
        "id": token.id,
        "subject": token.subject,
        "role": token.role.value,
        "created": stamp(token.created),
        "expires": stamp(token.expires),
        "revoked": stamp(token.revoked) if token.revoked is not None else None,
    }


@dataclass(frozen=True)
class NewTokenView(View):
    """A token that was just made."""

    made: NewToken
    kind: ClassVar[str] = "token-created"

    def text(self) -> str:
        stored = self.made.stored
        return (
            f"token {stored.id} for {stored.subject}, {stored.role}, until {stamp(stored.expires)}. It is shown once:\n"
            f"{self.made.text.get_secret_value()}"
        )

    def fields(self) -> NewTokenDocument:
        return {"token": _fields(self.made.stored), "text": self.made.text.get_secret_value()}


@dataclass(frozen=True)
class TokensView(TabularView):
    """The tokens of this host."""

    tokens: Sequence[StoredToken]
    now: datetime
    kind: ClassVar[str] = "tokens"

    def parts(self) -> Sequence[Part]:
        rows = [
            (token.id, token.subject, token.role.value, stamp(token.created), stamp(token.expires), self._state(token))
            for token in self.tokens
        ]
        headings = ("TOKEN", "SUBJECT", "ROLE", "CREATED", "EXPIRES", "STATE")
        return [Table(headings, rows, "no tokens: `zsnapdb token create` makes one")]

    def _state(self, token: StoredToken) -> str:
        if token.revoked is not None:
            return f"revoked {stamp(token.revoked)}"
        return "valid" if token.is_valid(self.now) else "expired"

    def fields(self) -> TokensDocument:
        return {"tokens": [_fields(token) for token in self.tokens]}


@dataclass(frozen=True)
class RevokedTokenView(View):
    """A token that was revoked."""

    token: StoredToken
    kind: ClassVar[str] = "token-revoked"

    def text(self) -> str:
        return f"token {self.token.id} of {self.token.subject} is revoked; its clones stay until their leases end"

    def fields(self) -> RevokedTokenDocument:
        return {"token": _fields(self.token)}
