"""Views of the tokens of `zsnapdb serve`. A token's text is shown only once, by the command that creates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from zsnapdb.documents.api import IssuerKeysDocument, NewTokenDocument, RevokedTokenDocument, TokensDocument
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.report.view import Part, Table, TabularView, View, columns
from zsnapdb.serve.issuer_keys import FetchedKeys
from zsnapdb.serve.tokens import NewToken, StoredToken


class NewTokenView(View, kind="token-created", document=NewTokenDocument, read_from="made"):
    """A token that was just created."""

    made: NewToken

    def text(self) -> str:
        stored = self.made.stored
        return (
            f"token {stored.id} for {stored.subject}, {stored.role}, until {stamp(stored.expires)}. It is shown once:\n"
            f"{self.made.text.get_secret_value()}"
        )


class TokensView(TabularView, kind="tokens", document=TokensDocument):
    """The tokens of this host."""

    tokens: Sequence[StoredToken]
    now: datetime

    def parts(self) -> Sequence[Part]:
        cells: Mapping[str, Callable[[StoredToken], str]] = {
            "TOKEN": lambda token: token.id,
            "KIND": lambda token: token.kind.value,
            "SUBJECT": lambda token: token.subject,
            "ROLE": lambda token: token.role.value,
            "CREATED": lambda token: stamp(token.created),
            "EXPIRES": lambda token: stamp(token.expires),
            "STATE": self._state,
        }
        return [columns(self.tokens, cells, "no tokens: `zsnapdb token create` makes one")]

    def _state(self, token: StoredToken) -> str:
        if token.revoked is not None:
            return f"revoked {stamp(token.revoked)}"
        return "valid" if token.is_valid(self.now) else "expired"


class RevokedTokenView(View, kind="token-revoked", document=RevokedTokenDocument):
    """A token that was revoked."""

    token: StoredToken

    def text(self) -> str:
        return f"token {self.token.id} of {self.token.subject} is revoked; its clones stay until their leases end"


class IssuerKeysView(TabularView, kind="issuer-keys", document=IssuerKeysDocument, read_from="found"):
    """The keys of an issuer of id tokens."""

    found: FetchedKeys

    def parts(self) -> Sequence[Part]:
        rows = [(one.kid, one.crv or one.kty, one.alg or "any of its type") for one in self.found.keys]
        return [
            f"keys of {self.found.issuer}, from {self.found.jwks_url}:",
            Table(("KEY", "TYPE", "ALGORITHM"), rows, ""),
        ]
