"""The public parts of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from typing_extensions import TypedDict

from zsnapdb.jobs.repository.keys import KeyFiles
from zsnapdb.report.view import View


class KeyFields(TypedDict):
    """The public parts of the keys of a repository, or of two files."""

    repository: str | None
    identity_file: str | None
    recipients: list[str]
    signing_key_file: str | None
    signer: str | None


class KeysDocument(TypedDict):
    """The public parts of keys."""

    keys: list[KeyFields]


class KeyFileFields(TypedDict):
    """A key file that would be written."""

    what: str
    file: str


class KeysPlanDocument(TypedDict):
    """The key files that would be written."""

    files: list[KeyFileFields]


@dataclass(frozen=True)
class KeysView(View):
    """The public parts of keys, as lines for the configuration."""

    files: Sequence[KeyFiles]
    kind: ClassVar[str] = "keys"

    def text(self) -> str:
        lines = []
        for item in self.files:
            if item.repository is not None:
                lines.append(f"[repository.{item.repository}.encryption]")
            if item.identity is not None:
                lines.append(
                    "recipients = ["
                    + ", ".join(f'"{recipient}"' for recipient in item.recipients)
                    + f"]  # identity in {item.identity}"
                )
            if item.signer is not None:
                lines.append(f'signers = ["{item.signer}"]  # signing key in {item.signing_key}')
        return "\n".join(lines) or "no repository's configuration names an identity_file or a signing_key_file"

    def fields(self) -> KeysDocument:
        rows: list[KeyFields] = [
            {
                "repository": item.repository,
                "identity_file": str(item.identity) if item.identity else None,
                "recipients": list(item.recipients),
                "signing_key_file": str(item.signing_key) if item.signing_key else None,
                "signer": item.signer,
            }
            for item in self.files
        ]
        return {
            "keys": rows,
        }


def _planned(identity: Path | None, signing_key: Path | None) -> list[tuple[str, Path]]:
    return [
        (what, file)
        for what, file in (("age identity", identity), ("Ed25519 signing key", signing_key))
        if file is not None
    ]


@dataclass(frozen=True)
class KeysPlanView(View):
    """The key files that would be written."""

    identity: Path | None
    signing_key: Path | None
    kind: ClassVar[str] = "keys-plan"

    def text(self) -> str:
        return "\n".join(
            f"write a new {what} to {file}, mode 0600" for what, file in _planned(self.identity, self.signing_key)
        )

    def fields(self) -> KeysPlanDocument:
        return {
            "files": [{"what": what, "file": str(file)} for what, file in _planned(self.identity, self.signing_key)],
        }
