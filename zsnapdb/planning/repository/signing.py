"""Whether a host signs what it stores, and how that is decided. Pure."""

from __future__ import annotations

from enum import StrEnum

from zsnapdb.config.repository import EncryptionSettings

SIGNING_KEY = "/etc/zsnapdb/signing-key"


class SigningState(StrEnum):
    """Whether this host signs what it stores in the repository, only reads there, or signs nothing by decision."""

    KEY = "key"
    READER = "reader"
    NONE = "none"
    UNDECIDED = "undecided"

    @classmethod
    def of(cls, settings: EncryptionSettings) -> SigningState:
        """Return the state that the settings of a repository say."""
        if settings.signing_key_file is not None:
            return cls.KEY
        if settings.signing is not None:
            return cls.NONE
        return cls.READER if settings.signers else cls.UNDECIDED


def signing_hint(repository: str) -> str:
    """Return how signing is decided for a repository of the configuration."""
    return (
        f"run `zsnapdb key generate --signing-key {SIGNING_KEY}` and set signing_key_file under"
        f' [repository.{repository}.encryption], or decide against it with signing = "none" there'
    )


def trust_hint(repository: str) -> str:
    """Return how this host comes to tell its documents from those of others: by a key of its own, or of the writer."""
    return (
        f"run `zsnapdb key generate --signing-key {SIGNING_KEY}` and set signing_key_file under"
        f" [repository.{repository}.encryption]. A host that only prunes, verifies or restores there sets signers, to"
        " what `zsnapdb key show` prints on the host that backs up"
    )


def signing_note(encryption: EncryptionSettings, repository: str) -> str:
    """Return what a person should know about a host that does not sign; "" if it signs, or only reads."""
    match SigningState.of(encryption):
        case SigningState.NONE:
            return 'this host signs nothing (signing = "none"): it believes whoever can write to the repository'
        case SigningState.UNDECIDED:
            return (
                "this host signs nothing, and its configuration does not say so: it believes whoever can write to the"
                f" repository; {signing_hint(repository)}"
            )
        case _:
            return ""
