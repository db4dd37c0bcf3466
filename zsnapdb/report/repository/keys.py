"""The public parts of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zsnapdb.documents.repository import KeysDocument, KeysPlanDocument
from zsnapdb.jobs.repository.keys import KeyFiles
from zsnapdb.report.view import View


@dataclass(frozen=True)
class KeysView(View):
    """The public parts of keys, as lines for the configuration."""

    files: Sequence[KeyFiles]
    kind: ClassVar[str] = "keys"
    document_class = KeysDocument

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


@dataclass(frozen=True)
class KeysPlanView(View):
    """The key files that would be written."""

    identity: Path | None
    signing_key: Path | None
    kind: ClassVar[str] = "keys-plan"
    document_class = KeysPlanDocument

    @property
    def files(self) -> list[tuple[str, Path]]:
        """Their contents in words, and the files."""
        files = (("age identity", self.identity), ("Ed25519 signing key", self.signing_key))
        return [(what, file) for what, file in files if file is not None]

    def text(self) -> str:
        return "\n".join(f"write a new {what} to {file}, mode 0600" for what, file in self.files)
