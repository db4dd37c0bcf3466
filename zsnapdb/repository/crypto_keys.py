"""Keys of the repository: data keys wrapped to age recipients, and Ed25519 signatures.

Only this module imports pyrage. The signature library is imported only when a signature is made or checked.

A data key is 32 random bytes for AES-256-GCM. Only its wrapped form, an armoured age file (age-encryption.org/v1), is
ever stored.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyrage

from zsnapdb.base.errors import ConfigError, DamagedError, ExistsError
from zsnapdb.base.files import secret_in

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DATA_KEY_BYTES = 32


@dataclass(frozen=True)
class AgeIdentity:
    """An age identity: a secret key and its public part, the recipient."""

    secret: str = field(repr=False)
    recipient: str

    @classmethod
    def parse(cls, text: str) -> AgeIdentity:
        """Return the identity. Raises ValueError if the text is not an age identity."""
        try:
            return cls(text, str(pyrage.x25519.Identity.from_str(text).to_public()))
        except pyrage.IdentityError:
            raise ValueError("not an age identity") from None

    @classmethod
    def new(cls) -> AgeIdentity:
        return cls.parse(str(pyrage.x25519.Identity.generate()))

    def file(self) -> bytes:
        """Return the content of the identity's file, in the format of age-keygen(1)."""
        return f"# public key: {self.recipient}\n{self.secret}\n".encode()


def new_data_key() -> bytes:
    """Return a new random data key."""
    return secrets.token_bytes(DATA_KEY_BYTES)


def _recipient(text: str) -> Any:
    try:
        return pyrage.x25519.Recipient.from_str(text)
    except pyrage.RecipientError:
        raise ConfigError(
            f"{text!r} is not an age recipient",
            hint="recipients are public keys, age1…; `zsnapdb key show` prints the public key of an identity",
        ) from None


def check_recipients(recipients: Sequence[str]) -> None:
    """Raise ConfigError if a text is not an age recipient. The error contains the first invalid text."""
    for text in recipients:
        _recipient(text)


def wrap(key: bytes, recipients: Sequence[str]) -> str:
    """Return the data key as an armoured age file that each of the recipients can open.

    Raises: ConfigError if `recipients` is empty or contains a malformed recipient.
    """
    if not recipients:
        raise ConfigError(
            "a data key needs at least one recipient", hint="set recipients under encryption of the repository"
        )
    armoured: bytes = pyrage.encrypt(key, [_recipient(text) for text in recipients], armored=True)
    return armoured.decode("ascii")


def unwrap(text: str, identities: Sequence[AgeIdentity], what: str) -> bytes:
    """Return the data key.

    Raises ConfigError if no identity can open the data key, and DamagedError if the text is not a wrapped data key.
    `what` is the data key's name in errors.
    """
    try:
        key: bytes = pyrage.decrypt(
            text.encode(), [pyrage.x25519.Identity.from_str(identity.secret) for identity in identities]
        )
    except pyrage.DecryptError as error:
        if "matching keys" in str(error):
            known = ", ".join(identity.recipient for identity in identities)
            raise ConfigError(
                f"{what} was wrapped to other recipients than {known}",
                hint="set identity_file to the identity of one of its recipients",
            ) from None
        raise DamagedError(
            f"{what} cannot be unwrapped: {error}",
            hint="the manifest was altered; restore another backup, see `zsnapdb list`",
        ) from None
    if len(key) != DATA_KEY_BYTES:
        raise DamagedError(
            f"{what} has {len(key)} bytes, not {DATA_KEY_BYTES}",
            hint="another tool wrote it; restore another backup, see `zsnapdb list`",
        )
    return key


def read_identities(file: Path) -> tuple[AgeIdentity, ...]:
    """Return the identities in an age identity file, which contains a secret key per line. `#` starts a comment.

    Raises: ConfigError if the file contains no identity, or a line that is not an identity.
    """
    identities = []
    for number, line in enumerate(_read(file, "identity_file").decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            identities.append(AgeIdentity.parse(line.strip()))
        except ValueError:
            # The line may be a mistyped secret key, so the error does not show the line.
            raise ConfigError(
                f"identity_file {file}, line {number}: not an age identity", hint="the line must be AGE-SECRET-KEY-1…"
            ) from None
    if not identities:
        raise ConfigError(
            f"identity_file {file} has no identity", hint="make one with `zsnapdb key generate` or `age-keygen`"
        )
    return tuple(identities)


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature and its claimed public key, both in base64."""

    key: str
    value: str

    def is_of(self, body: bytes | memoryview) -> bool:
        """Whether the claimed key has signed exactly the bytes in `body`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            public = Ed25519PublicKey.from_public_bytes(base64.b64decode(self.key, validate=True))
            public.verify(base64.b64decode(self.value, validate=True), body)
        except (InvalidSignature, ValueError, binascii.Error):
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 private key. The key file has the format PEM, PKCS 8, as from `openssl genpkey -algorithm ed25519`."""

    private: Ed25519PrivateKey

    @classmethod
    def new(cls) -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, file: Path) -> SigningKey:
        """Return the key in the file. Raises ConfigError if the file has no Ed25519 private key."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            key = serialization.load_pem_private_key(_read(file, "signing_key_file"), None)
        except (ValueError, TypeError):
            raise ConfigError(
                f"signing_key_file {file} has no private key",
                hint="make one with `zsnapdb key generate` (PEM, without a passphrase)",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(
                f"signing_key_file {file} has no Ed25519 key", hint="make one with `zsnapdb key generate`"
            )
        return cls(key)

    @property
    def public(self) -> str:
        """The public key, 32 bytes in base64, in the format of the setting `signers`."""
        return base64.b64encode(self.private.public_key().public_bytes_raw()).decode("ascii")

    def sign(self, body: bytes) -> Signature:
        """Return the signature of the bytes."""
        return Signature(self.public, base64.b64encode(self.private.sign(body)).decode("ascii"))

    def file(self) -> bytes:
        """Return the content of the key's file."""
        from cryptography.hazmat.primitives import serialization

        return self.private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def check_signer(text: str) -> None:
    """Raise ConfigError unless the text is an Ed25519 public key in base64."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error):
        raise ConfigError(
            f"{text!r} under signers is not an Ed25519 public key in base64",
            hint="`zsnapdb key show` prints the public key of a signing key",
        ) from None


def write_secret(file: Path, body: bytes) -> None:
    """Write a new file durably, with mode 0600.

    Raises ExistsError if the file exists, because a key must never be overwritten.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
    except FileExistsError:
        raise ExistsError(
            f"{file} exists",
            hint="name another file; a key is never overwritten, because data that it encrypted would be lost",
        ) from None
    except OSError as error:
        raise ConfigError(f"writing {file}: {error.strerror}", hint="check the folder and its permissions") from error


def _read(file: Path, option: str) -> bytes:
    return secret_in(file, option, "check the path; it must be readable by the user that runs zsnapdb")
