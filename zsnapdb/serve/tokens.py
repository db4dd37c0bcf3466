"""Tokens of the subjects that may use the helper. Only their SHA-256 is stored, in a file that only root can read."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from zsnapdb.base import files
from zsnapdb.base.errors import BusyError, ConfigError, UnknownNameError, UsageError
from zsnapdb.base.files import make_private, secret_in
from zsnapdb.base.patterns import FORMS, Moment, Sha256, Subject, is_same, is_subject
from zsnapdb.serve.roles import Role

_PREFIX = "zsnapdb_"
_RANDOM_BYTES = 32
_LOCK_SECONDS = 10.0
_LONGEST = 10 * 366 * 86400.0
_CLOCKS = timedelta(minutes=5)
"""Maximum tolerated amount by which the clock was set back."""
_MOST_SESSIONS = 10
"""Maximum number of sessions of a subject. If one more session is opened, the oldest session ends."""
_NOBODY = hashlib.sha256(b"").hexdigest()


class TokenKind(StrEnum):
    """The origin of a token: created by an administrator for a program or person, or by a login for a browser."""

    MADE = "token"
    SESSION = "session"


class StoredToken(BaseModel):
    """A stored token. It is valid until it expires or is revoked.

    `issuer` is the issuer that authenticated the subject of a session; it is empty if this host authenticated the
    subject.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{8}$")]
    subject: Subject
    role: Role
    sha256: Sha256
    created: Moment
    expires: Moment
    revoked: Moment | None = None
    kind: TokenKind = TokenKind.MADE
    issuer: Annotated[str, Field(pattern=r"^(?:https://[!-~]{1,1000})?$")] = ""

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token is valid now.

        A token with a creation time in the future was created while the clock was ahead, and is invalid.
        """
        return self.revoked is None and self.created - _CLOCKS <= now < self.expires


class _TokensDocument(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    format: Literal[1] = 1
    tokens: Annotated[tuple[StoredToken, ...], Field(max_length=100_000)] = ()


@dataclass(frozen=True)
class NewToken:
    """A token that was just created. The text is not stored; only the recipient has it."""

    stored: StoredToken
    text: SecretStr


@dataclass(frozen=True)
class TokenBook:
    """The tokens of this host, in a root folder."""

    folder: Path
    removal_time: Callable[[], datetime] | None = None
    """Returns the time by which expired sessions are removed (None means the time of the request is used)."""

    @property
    def file(self) -> Path:
        return self.folder / "tokens.json"

    def create(self, subject: str, role: Role, seconds: float, now: datetime) -> NewToken:
        """Create and store a token for the subject. It expires after `seconds`.

        Raises UsageError if the subject is invalid, or if the validity is not between one second and ten years.
        """
        if not is_subject(subject):
            raise UsageError(f"{subject!r} is not a subject", hint=f"write {FORMS}")
        if not 1 <= seconds <= _LONGEST:
            raise UsageError("a token lasts between a second and ten years", hint="give --expires 90d")
        with self._changing() as known:
            made = _new_token(subject, role, now, now + timedelta(seconds=seconds), known.tokens)
            self._store((*known.tokens, made.stored))
        return made

    def open_session(self, subject: str, role: Role, issuer: str, seconds: float, now: datetime) -> NewToken:
        """Create and store the token of a session for the subject that the issuer authenticated.

        If the subject has too many sessions, its oldest sessions end. Expired sessions are removed.
        """
        removes_at = self.removal_time() if self.removal_time is not None else now
        with self._changing() as known:
            left = [one for one in known.tokens if one.kind is not TokenKind.SESSION or removes_at < one.expires]
            mine = [one.id for one in left if one.kind is TokenKind.SESSION and is_same(one.subject, subject)]
            over = set(mine[: max(0, len(mine) + 1 - _MOST_SESSIONS)])
            left = [one for one in left if one.id not in over]
            made = _new_token(subject, role, now, now + timedelta(seconds=seconds), left)
            stored = made.stored.model_copy(update={"kind": TokenKind.SESSION, "issuer": issuer})
            self._store((*left, stored))
        return NewToken(stored, made.text)

    def close_session(self, text: str) -> bool:
        """End the session with this token, and return whether there was one. Tokens of other kinds are not changed."""
        given = _digest(text)
        with self._changing() as known:
            left = [
                one
                for one in known.tokens
                if one.kind is not TokenKind.SESSION or not hmac.compare_digest(one.sha256, given)
            ]
            if len(left) == len(known.tokens):
                return False
            self._store(tuple(left))
        return True

    def tokens(self) -> tuple[StoredToken, ...]:
        """Return the tokens, oldest first, including expired and revoked ones.

        Raises ConfigError if the file is invalid.
        """
        return self._read().tokens

    def revoke(self, token_id: str, now: datetime) -> StoredToken:
        """Revoke the token with this id. The next request with that token is refused.

        Raises UnknownNameError if no token has this id.
        """
        with self._changing() as known:
            found = next((token for token in known.tokens if token.id == token_id), None)
            if found is None:
                raise UnknownNameError(f"there is no token {token_id}", hint="`zsnapdb token list` lists them")
            revoked = found if found.revoked is not None else found.model_copy(update={"revoked": now})
            self._store(tuple(revoked if token.id == token_id else token for token in known.tokens))
        return revoked

    def holder(self, text: str, now: datetime) -> StoredToken | None:
        """Return the valid token with this text; None if it is unknown, expired or revoked.

        The text is compared with every stored token, so the duration does not reveal which token matched.
        """
        given, found = _digest(text), None
        for token in self._read().tokens:
            if hmac.compare_digest(token.sha256, given):
                found = token
        # If a request has no token, the text is "".
        return found if found is not None and given != _NOBODY and found.is_valid(now) else None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_TokensDocument]:
        make_private(self.folder)
        try:
            with files.locked_file(self.folder / "tokens.lock", _LOCK_SECONDS):
                yield self._read()
        except TimeoutError as error:
            raise BusyError(f"changing the tokens: {error.strerror}", hint="try again") from error

    def _read(self) -> _TokensDocument:
        if not self.file.exists():
            return _TokensDocument()
        body = secret_in(self.file, "the tokens", "run the command as root")
        try:
            return _TokensDocument.model_validate_json(body)
        except ValidationError as error:
            raise ConfigError(
                f"reading the tokens {self.file}: the file was altered",
                hint="remove it and make new tokens: `zsnapdb token create`",
            ) from error

    def _store(self, tokens: tuple[StoredToken, ...]) -> None:
        files.replace(self.file, _TokensDocument(tokens=tokens).model_dump_json().encode())


def _new_token(subject: str, role: Role, now: datetime, expires: datetime, known: Sequence[StoredToken]) -> NewToken:
    """Return a new token, which is not stored yet."""
    text = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    taken = {token.id for token in known}
    stored = StoredToken(
        id=next(one for one in iter(lambda: secrets.token_hex(4), "") if one not in taken),
        subject=subject,
        role=role,
        sha256=_digest(text),
        created=now,
        expires=expires,
    )
    return NewToken(stored, SecretStr(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class CredentialHolder(Protocol):
    """The subject of a request, its role, its issuer ("" for zsnapdb itself), and when its credential expires."""

    @property
    def subject(self) -> str: ...

    @property
    def role(self) -> Role: ...

    @property
    def issuer(self) -> str: ...

    @property
    def expires(self) -> datetime: ...


class CredentialBook(Protocol):
    """Finds the holders of bearer credentials."""

    def holder(self, text: str, now: datetime) -> CredentialHolder | None:
        """Return the current holder of the credential; None if it is invalid.

        Raises ZsnapdbError if the credential cannot be checked.
        """
        ...


@dataclass(frozen=True)
class CredentialStore:
    """Tokens of zsnapdb, and id tokens. Only id tokens contain a dot, which distinguishes them."""

    tokens: CredentialBook
    id_tokens: CredentialBook

    def holder(self, text: str, now: datetime) -> CredentialHolder | None:
        """Return the holder of the credential. Only one of the two books, zsnapdb tokens or id tokens, is queried."""
        return (self.id_tokens if "." in text else self.tokens).holder(text, now)
