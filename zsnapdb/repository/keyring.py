"""The keys that this host has for a repository, for encryption, signatures and trust. Key files are read on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from zsnapdb.base.errors import ConfigError, DamagedError
from zsnapdb.config.repository import EncryptionSettings
from zsnapdb.planning.repository.document_digests import RecordedDigests
from zsnapdb.repository import crypto_keys, stored_document
from zsnapdb.repository.manifest import KeyPart
from zsnapdb.repository.stored_document import StoredDocument


@dataclass(frozen=True)
class DataKey:
    """A data key of this run: the secret, which stays in memory, and its wrapped form for the manifest."""

    secret: bytes
    part: KeyPart


class UntrustedRecord(DamagedError):
    """An error: the document is intact, but no trusted writer wrote it."""


class KnownDocuments(Protocol):
    """This host's record of documents that it stored without a signature, or adopted."""

    @property
    def tells_apart(self) -> bool:
        """Whether the host has records that distinguish its own documents from foreign ones."""

    def knows(self, digest: str) -> bool:
        """Whether the host stored or adopted a document with this SHA-256."""

    def binlogs_in(self, folder: Path) -> RecordedDigests:
        """Return the archived binlogs of the record in this folder of the host."""

    def note(self, place: str, digest: str) -> None:
        """Record a document's digest under `place`. Call this method before the document is stored."""

    def forget(self, place: str) -> None:
        """Delete all records under `place`."""

    def stored_elsewhere(self, repository_id: str) -> Mapping[str, Sequence[str]]:
        """Return the backups that this host stored in other repositories at this address, keyed by repository id.

        Backups are sorted, oldest first. The result is empty if the host stored any backup under `repository_id`.
        """

    def note_damage(self, document: bytes | None) -> None:
        """Record the found damage of the repository; None means that no damage was found."""

    def known_damage(self) -> bytes | None:
        """Return the recorded damage; None if no damage is recorded."""


@dataclass(frozen=True)
class Keyring:
    """This host's keys for a repository.

    An empty keyring neither encrypts nor signs, and trusts any manifest. If a host signs, it trusts only its own
    signing key and the configured signers. If a host encrypts or has an identity, it refuses unencrypted backups,
    unless `accepts_plain` is set. Documents recorded in `own` are trusted without a signature.
    """

    recipients: tuple[str, ...] = ()
    identity_file: Path | None = None
    signing_key_file: Path | None = None
    signers: tuple[str, ...] = ()
    accepts_plain: bool = False
    own: KnownDocuments | None = None

    @classmethod
    def of(cls, settings: EncryptionSettings) -> Keyring:
        """Return the keyring for the settings. No file is read yet.

        Raises: ConfigError if a public key is malformed.
        """
        crypto_keys.check_recipients(settings.recipients)
        for signer in settings.signers:
            crypto_keys.check_signer(signer)
        return cls(
            settings.recipients,
            settings.identity_file,
            settings.signing_key_file,
            settings.signers,
            settings.accept_plain,
        )

    @property
    def is_encrypting(self) -> bool:
        """Whether this host encrypts the objects that it stores."""
        return bool(self.recipients)

    @cached_property
    def _identities(self) -> tuple[crypto_keys.AgeIdentity, ...]:
        if self.identity_file is None:
            raise ConfigError(
                "the backup is encrypted, and no identity is configured",
                hint="set identity_file under encryption of the repository",
            )
        return crypto_keys.read_identities(self.identity_file)

    def new_key(self, key_id: str) -> DataKey:
        """Return a new data key, wrapped to all recipients."""
        secret = crypto_keys.new_data_key()
        return DataKey(
            secret, KeyPart(id=key_id, recipients=self.recipients, wrapped=crypto_keys.wrap(secret, self.recipients))
        )

    def open_keys(self, parts: Sequence[KeyPart], what: str) -> Mapping[str, bytes]:
        """Return the data keys, keyed by id. `what` names the backup in errors.

        Raises: ConfigError if this host has no identity that opens the data keys.
        """
        return {
            part.id: crypto_keys.unwrap(part.wrapped, self._identities, f"data key {part.id} of {what}")
            for part in parts
        }

    @cached_property
    def _signing_key(self) -> crypto_keys.SigningKey | None:
        if self.signing_key_file is None:
            if self.signers:
                raise ConfigError(
                    "signers are configured, but this host does not sign",
                    hint="set signing_key_file under encryption, or leave out signers",
                )
            return None
        key = crypto_keys.SigningKey.read(self.signing_key_file)
        if self.signers and key.public not in self.signers:
            raise ConfigError(
                f"the signing key's public part {key.public} is not among the signers", hint="add it to signers"
            )
        return key

    @property
    def own_signer(self) -> str | None:
        """The public part of this host's signing key; None if this host does not sign."""
        return None if self._signing_key is None else self._signing_key.public

    @cached_property
    def trusted(self) -> tuple[str, ...]:
        """The trusted public keys: the signers, or the host's own key.

        If this host has neither, any manifest is trusted.

        Raises: ConfigError if only a signing key is configured, and its file cannot be read.
        """
        if not self.signers and self._lacks_key:
            raise ConfigError(
                f"signing_key_file {self.signing_key_file} does not exist, so this host trusts no backup",
                hint="put the file back; to only read the repository, set signers under encryption to the public parts"
                " of the keys that signed its backups",
            )
        if self.signers or self._signing_key is None:
            return self.signers
        return (self._signing_key.public,)

    @property
    def _lacks_key(self) -> bool:
        """Whether the file of the configured signing key does not exist, as with the settings of a lost host."""
        if self.signing_key_file is None:
            return False
        try:
            self.signing_key_file.lstat()
        except FileNotFoundError:
            return True
        except OSError:
            # The error that follows when the key is read says more.
            return False
        return False

    @property
    def refuses_plain(self) -> bool:
        """Whether this host refuses unencrypted backups."""
        return (self.is_encrypting or self.identity_file is not None) and not self.accepts_plain

    @property
    def cache_trust(self) -> tuple[str, ...]:
        """The rules of trust on which this host's caches depend.

        If the rules change, the documents are read again.
        """
        return (*self.trusted, *(("encrypted",) if self.refuses_plain else ()))

    def check_encrypted(self, key_ids: Iterable[str | None], name: str) -> None:
        """Raise DamagedError if an object has an unencrypted chunk and this host refuses unencrypted chunks.

        `key_ids` are the key ids of the chunks; None stands for an unencrypted chunk. `name` is the name of the object.
        """
        if self.refuses_plain and any(key_id is None for key_id in key_ids):
            raise DamagedError(
                f"{name} is not encrypted, and this host encrypts its backups",
                hint=(
                    "if this host made it before encryption was configured, set accept_plain = true under encryption;"
                    " otherwise"
                    " somebody else wrote it"
                ),
            )

    def check_signing(self) -> None:
        """Raise ConfigError if this host cannot sign as configured, or would not trust its own signatures."""
        _ = self._signing_key

    @property
    def is_believed(self) -> bool:
        """Whether this host trusts the documents that it writes: it signs them, or has no configured signers."""
        return not self.signers or (self.signing_key_file is not None and not self._lacks_key)

    def signed_if_able(self, line: bytes, place: str = "") -> bytes:
        """Return the stored object for a document that any host may write.

        The object is signed only if this host has a signing key.
        """
        return self.signed(line, place) if self.is_believed else self._digested(line, place)

    def _digested(self, line: bytes, place: str) -> bytes:
        if self.own is not None and place:
            self.own.note(place, stored_document.digest_of(line))
        return stored_document.with_digest(line)

    def signed(self, line: bytes, place: str = "") -> bytes:
        """Return the stored object for a document's line.

        The second line of the object is the signature of this host. If this host does not sign, the second line is the
        digest of the first line, and the new document is recorded under `place`.
        """
        if self._signing_key is None:
            return self._digested(line, place)
        return stored_document.with_signature(line, self._signing_key.sign(line))

    def signer(self, body: bytes) -> str | None:
        """Return the public key of a stored object's valid signature (None if there is no valid signature).

        The key may be untrusted.
        """
        try:
            return stored_document.open_document(body, "it").signer
        except DamagedError:
            return None

    def verified(self, body: bytes, name: str) -> bytes:
        """Return the document's line from the stored object, with the checks of `opened`."""
        return self.opened(body, name).line

    def opened(self, body: bytes, name: str) -> StoredDocument:
        """Return the document in the stored object. `name` is the name of the object for errors.

        Raises: DamagedError: the line does not match its signature or digest. UntrustedRecord: the line matches, but no
        trusted key signed it, and this host has not recorded the document as its own.
        """
        document = stored_document.open_document(body, name)
        signer = document.signer
        if self.believes(signer, document.digest):
            return document
        if signer is None:
            raise UntrustedRecord(
                f"{name} is not signed",
                hint="run `zsnapdb adopt INSTANCE --plan`; the object was altered, or an unsigning host wrote it",
            )
        raise UntrustedRecord(
            f"{name} is signed by {signer}, which is not among the signers",
            hint="the object was altered, or a host whose key is not under signers wrote it",
        )

    def believes(self, signer: str | None, digest: str) -> bool:
        """Whether this host trusts a line with this SHA-256 and a valid signature of this key (None: no signature)."""
        return not self.trusted or signer in self.trusted or (self.own is not None and self.own.knows(digest))

    def known(self, body: bytes, name: str) -> bytes:
        """Return the document's line, with the checks of `verified`.

        Raises: UntrustedRecord in the same cases as `verified`, and if this host trusts any document but has not
        recorded this document.
        """
        line = self.verified(body, name)
        if not self.is_known(line):
            raise UntrustedRecord(
                f"{name} is foreign: this host did not store it",
                hint="run `zsnapdb adopt INSTANCE --plan` to examine it, or add the writer's key to `signers`",
            )
        return line

    def is_known(self, line: bytes) -> bool:
        """Whether this host checks signatures, or has recorded this line. The line comes from `verified`."""
        return self.is_own(stored_document.digest_of(line))

    def read_own(self) -> None:
        """Read the records of this host now, unless signatures decide which documents are known.

        This takes memory for a moment. A caller that reads thousands of documents calls it first.
        """
        if not self.trusted and self.own is not None:
            _ = self.own.tells_apart

    def is_own(self, *digests: str) -> bool:
        """Return the result of `is_known` for a document with these digests.

        This host may have recorded any of them for the document.
        """
        if self.trusted or self.own is None or not self.own.tells_apart:
            return True
        return any(map(self.own.knows, digests))

    def forget(self, place: str) -> None:
        """Delete all records under `place`. Call this method before the documents are replaced or removed."""
        if self.own is not None:
            self.own.forget(place)

    def believing_all(self) -> Keyring:
        """Return the keyring without trust settings, for opening documents of untrusted writers."""
        return replace(self, signing_key_file=None, signers=(), own=None)
