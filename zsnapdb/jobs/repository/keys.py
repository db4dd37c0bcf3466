"""Creation of keys, and the public parts of existing keys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.errors import ExistsError
from zsnapdb.base.patterns import without_surrogates
from zsnapdb.config.settings import Settings
from zsnapdb.planning.evidence.policy import PolicyChange
from zsnapdb.repository import keys


@dataclass(frozen=True)
class KeyFiles:
    """Files of secret keys with their public parts: age identities (one recipient each), a signing key."""

    identity: Path | None = None
    recipients: tuple[str, ...] = ()
    signing_key: Path | None = None
    signer: str | None = None
    repository: str | None = None

    @property
    def changes(self) -> tuple[PolicyChange, ...]:
        identities = [
            PolicyChange(what=f"identity {recipient}", after=_made_in(self.identity)) for recipient in self.recipients
        ]
        signing = [PolicyChange(what=f"signing key {self.signer}", after=_made_in(self.signing_key))]
        return (*identities, *(signing if self.signer is not None else ()))


def _made_in(file: Path | None) -> str:
    return f"made, in {without_surrogates(str(file))}"


def refuse_existing(identity: Path | None, signing_key: Path | None) -> None:
    """Raise ExistsError if one of the files exists."""
    for file in (identity, signing_key):
        if file is not None and os.path.lexists(file):
            raise ExistsError(
                f"{file} exists",
                hint="name another file; zsnapdb never overwrites a key, as everything encrypted to it would be lost",
            )


def generate(identity: Path | None, signing_key: Path | None) -> KeyFiles:
    """Write new keys to the files, mode 0600, and return their public parts.

    Raises: ExistsError if one of the files exists. No file is written then.
    """
    refuse_existing(identity, signing_key)
    recipients: tuple[str, ...] = ()
    signer = None
    if identity is not None:
        new = keys.AgeIdentity.new()
        keys.write_secret(identity, new.file())
        recipients = (new.recipient,)
    if signing_key is not None:
        key = keys.SigningKey.new()
        keys.write_secret(signing_key, key.file())
        signer = key.public
    return KeyFiles(identity, recipients, signing_key, signer)


def public_parts(identity: Path | None, signing_key: Path | None, repository: str | None = None) -> KeyFiles:
    """Return the public parts of the keys in the files. ConfigError if a file contains no key."""
    recipients = tuple(secret.recipient for secret in keys.read_identities(identity)) if identity is not None else ()
    signer = keys.SigningKey.read(signing_key).public if signing_key is not None else None
    return KeyFiles(identity, recipients, signing_key, signer, repository)


def configured(settings: Settings) -> list[KeyFiles]:
    """Return the public parts of the configured keys of each repository.

    A repository without a key file is left out.
    """
    key_files = []
    for name, repository in sorted(settings.repository.items()):
        encryption = repository.encryption
        if encryption.identity_file is not None or encryption.signing_key_file is not None:
            key_files.append(public_parts(encryption.identity_file, encryption.signing_key_file, name))
    return key_files
