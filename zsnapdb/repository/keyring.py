"""The keys of a repository on this host: for encrypting, reading, signing and trusting. Files are read when needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from zsnapdb.base.errors import ConfigError, DamagedError
from zsnapdb.base.foreign_json import fields_of
from zsnapdb.config.repository import EncryptionSettings
from zsnapdb.repository import keys
from zsnapdb.repository.manifest import KeyPart

_LONGEST_TEXT = 200
"""Characters of the longest key or signature: Ed25519 has 44 and 88 in base64."""


@dataclass(frozen=True)
class DataKey:
    """A data key of this run: the secret, which stays in memory, and the wrapped form for the manifest."""

    secret: bytes
    part: KeyPart


@dataclass(frozen=True)
class Keyring:
    """The keys of a repository that this host has.

    An empty keyring neither encrypts nor signs, and trusts any manifest. A host that signs trusts its own key and the
    configured signers alone. A host that encrypts or has an identity uses no backup that is not encrypted, unless
    `accepts_plain`.
    """

    recipients: tuple[str, ...] = ()
    identity_file: Path | None = None
    signing_key_file: Path | None = None
    signers: tuple[str, ...] = ()
    accepts_plain: bool = False

    @classmethod
    def of(cls, settings: EncryptionSettings) -> Keyring:
        """Return the keyring of the settings. ConfigError if a public key is malformed; no file is read yet."""
        keys.check_recipients(settings.recipients)
        for signer in settings.signers:
            keys.check_signer(signer)
        return cls(
            settings.recipients,
            settings.identity_file,
            settings.signing_key_file,
            settings.signers,
            settings.accept_plain,
        )

    @property
    def is_encrypting(self) -> bool:
        """Whether this host encrypts what it stores."""
        return bool(self.recipients)

    @cached_property
    def _identities(self) -> tuple[keys.AgeIdentity, ...]:
        if self.identity_file is None:
            raise ConfigError(
                "the backup is encrypted, and no identity is configured",
                hint="set identity_file under encryption of the repository",
            )
        return keys.read_identities(self.identity_file)

    def new_key(self, key_id: str) -> DataKey:
        """Return a new data key, wrapped to all recipients."""
        secret = keys.new_data_key()
        return DataKey(
            secret, KeyPart(id=key_id, recipients=self.recipients, wrapped=keys.wrap(secret, self.recipients))
        )

    def open_keys(self, parts: Sequence[KeyPart], what: str) -> Mapping[str, bytes]:
        """Return the data keys by id.

        ConfigError if this host has no identity that opens them. `what` names the backup in errors.
        """
        return {part.id: keys.unwrap(part.wrapped, self._identities, f"data key {part.id} of {what}") for part in parts}

    @cached_property
    def _signing_key(self) -> keys.SigningKey | None:
        if self.signing_key_file is None:
            if self.signers:
                raise ConfigError(
                    "signers are configured, but this host does not sign",
                    hint="set signing_key_file under encryption, or leave out signers",
                )
            return None
        key = keys.SigningKey.read(self.signing_key_file)
        if self.signers and key.public not in self.signers:
            raise ConfigError(
                f"the signing key's public part {key.public} is not among the signers", hint="add it to signers"
            )
        return key

    @cached_property
    def trusted(self) -> tuple[str, ...]:
        """The public keys whose signatures this host believes: the signers, or its own key. Empty: any manifest."""
        if self.signers or self._signing_key is None:
            return self.signers
        return (self._signing_key.public,)

    @property
    def refuses_plain(self) -> bool:
        """Whether this host uses no backup that is not encrypted."""
        return (self.is_encrypting or self.identity_file is not None) and not self.accepts_plain

    def check_encrypted(self, key_ids: Iterable[str | None], name: str) -> None:
        """Raise DamagedError if an object has a plain chunk, and this host refuses plain chunks.

        `key_ids` are those of the chunks; None is a plain chunk. `name` is the object.
        """
        if self.refuses_plain and any(key_id is None for key_id in key_ids):
            raise DamagedError(
                f"{name} is not encrypted, and this host encrypts its backups",
                hint=(
                    "if this host made it before it encrypted, set accept_plain = true under encryption; otherwise"
                    " somebody else wrote it"
                ),
            )

    def check_signing(self) -> None:
        """Raise ConfigError if this host cannot sign as configured, or would not trust its own signature."""
        _ = self._signing_key

    @property
    def is_believed(self) -> bool:
        """Whether this host believes what it writes itself: it signs, or it believes anything."""
        return self.signing_key_file is not None or not self.signers

    def signed_if_able(self, line: bytes) -> bytes:
        """Return the stored object for the line of a document that every host may write, signed if this host signs."""
        return self.signed(line) if self.is_believed else line + b"\n"

    def signed(self, line: bytes) -> bytes:
        """Return the stored object for a document's line. If this host signs, its second line is the signature."""
        if self._signing_key is None:
            return line + b"\n"
        signature = self._signing_key.sign(line)
        second = json.dumps({"signature": {"key": signature.key, "value": signature.value}}, separators=(",", ":"))
        return line + b"\n" + second.encode() + b"\n"

    def signer(self, body: bytes) -> str | None:
        """Return the key with a valid signature in a stored object, believed or not; None if there is none."""
        line, _, rest = body.partition(b"\n")
        try:
            signature = _signature(rest)
        except ValueError:
            return None
        return signature.key if signature.is_of(line) else None

    def verified(self, body: bytes, name: str) -> bytes:
        """Return the document's line from the stored object. `name` says in errors which object it is.

        DamagedError if this host trusts only certain keys and none of them signed the line. A signature in the object
        must be valid in any case.
        """
        line, _, rest = body.partition(b"\n")
        hint = "the object was altered, or a host whose key is not under signers wrote it"
        if not rest:
            if self.trusted:
                raise DamagedError(f"{name} is not signed", hint=hint)
            return line
        try:
            signature = _signature(rest)
        except ValueError:
            raise DamagedError(f"{name}: its second line is not a signature", hint=hint) from None
        if self.trusted and signature.key not in self.trusted:
            raise DamagedError(f"{name} is signed by {signature.key}, which is not among the signers", hint=hint)
        if not signature.is_of(line):
            raise DamagedError(f"{name}: the signature does not match the content", hint=hint)
        return line


def _signature(line: bytes) -> keys.Signature:
    """Return the signature in the second line of an object. ValueError if the line has none."""
    fields = fields_of(line).get("signature")
    key, value = (fields.get("key"), fields.get("value")) if isinstance(fields, dict) else (None, None)
    if not isinstance(key, str) or not isinstance(value, str) or len(key) > _LONGEST_TEXT or len(value) > _LONGEST_TEXT:
        raise ValueError("the line has no signature")
    return keys.Signature(key, value)
