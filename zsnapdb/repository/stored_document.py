"""The stored form of a document: its line, and a second line that reveals changes to the first line.

The second line is a signature if the host signs, otherwise the SHA-256 of the first line. A document that an earlier
version stored without a signature has only one line, so accidental damage may stay undetected.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.untrusted_text import exact_fields_of
from zsnapdb.repository import crypto_keys

_LONGEST_TEXT = 200
"""Maximum length of a key or signature. An Ed25519 key has 44 characters in base64, a signature 88."""
_ALTERED = "the object was altered; look for it in older versions or in a copy of the bucket"


@dataclass(frozen=True)
class StoredDocument:
    """A stored document. `view` is the document's line. It is not copied, because a manifest can have 128 MiB.

    `has_digest` is True if a second line shows whether the first line is unchanged.
    """

    view: memoryview
    signature: crypto_keys.Signature | None
    has_digest: bool

    @property
    def line(self) -> bytes:
        """A copy of the line."""
        return bytes(self.view)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the line, in hexadecimal."""
        return digest_of(self.view)

    @property
    def signer(self) -> str | None:
        """The key of the document's signature; None if there is no signature."""
        return self.signature.key if self.signature is not None else None


def digest_of(line: bytes | memoryview) -> str:
    """Return the SHA-256 of a document's line, in hexadecimal."""
    return hashlib.sha256(line).hexdigest()


def with_digest(line: bytes) -> bytes:
    """Return the stored object for a document's line without a signature."""
    return line + b"\n" + _second_line({"sha256": digest_of(line)})


def with_signature(line: bytes, signature: crypto_keys.Signature) -> bytes:
    """Return the stored object for a document's line with its signature."""
    return line + b"\n" + _second_line({"signature": {"key": signature.key, "value": signature.value}})


def open_document(body: bytes, name: str) -> StoredDocument:
    """Return the document in a stored object. `name` is the name of the object for errors.

    The caller decides whether to trust the signer.

    Raises: DamagedError if the second line does not match the first.
    """
    end = body.find(b"\n")
    line, rest = (memoryview(body)[:end], body[end + 1 :]) if end >= 0 else (memoryview(body), b"")
    if not rest:
        return StoredDocument(line, None, has_digest=False)
    try:
        fields = exact_fields_of(rest)
        signature = None if "sha256" in fields else _signature(fields)
    except ValueError:
        message = f"{name}: its second line is neither a signature nor a digest"
        raise DamagedError(message, hint=_ALTERED) from None
    document = StoredDocument(line, signature, has_digest=True)
    if signature is None and fields != {"sha256": document.digest}:
        raise DamagedError(f"{name}: its digest does not match its content", hint=_ALTERED)
    if signature is not None and not signature.is_of(line):
        raise DamagedError(f"{name}: the signature does not match the content", hint=_ALTERED)
    return document


def _second_line(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _signature(fields: dict[str, object]) -> crypto_keys.Signature:
    """Return the signature in the second line of an object.

    Raises: ValueError if the line contains no signature.
    """
    found = fields.get("signature")
    key, value = (found.get("key"), found.get("value")) if isinstance(found, dict) else (None, None)
    if not isinstance(key, str) or not isinstance(value, str) or len(key) > _LONGEST_TEXT or len(value) > _LONGEST_TEXT:
        raise ValueError("the line has no signature")
    return crypto_keys.Signature(key, value)
