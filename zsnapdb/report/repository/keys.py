"""Keys: their public parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zsnapdb.jobs.repository.keys import KeyFiles
from zsnapdb.report.document import document


def text(found: Sequence[KeyFiles]) -> str:
    """Return the public parts as they stand in the configuration."""
    lines = []
    for item in found:
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


def as_json(found: Sequence[KeyFiles]) -> str:
    """Return the public parts for programs."""
    rows = [
        {
            "repository": item.repository,
            "identity_file": str(item.identity) if item.identity else None,
            "recipients": list(item.recipients),
            "signing_key_file": str(item.signing_key) if item.signing_key else None,
            "signer": item.signer,
        }
        for item in found
    ]
    return document("keys", keys=rows)


def _planned(identity: Path | None, signing_key: Path | None) -> list[tuple[str, Path]]:
    return [
        (what, file)
        for what, file in (("age identity", identity), ("Ed25519 signing key", signing_key))
        if file is not None
    ]


def plan_text(identity: Path | None, signing_key: Path | None) -> str:
    """Return what would be written."""
    return "\n".join(f"write a new {what} to {file}, mode 0600" for what, file in _planned(identity, signing_key))


def plan_json(identity: Path | None, signing_key: Path | None) -> str:
    """Return what would be written, for programs."""
    return document(
        "keys-plan", files=[{"what": what, "file": str(file)} for what, file in _planned(identity, signing_key)]
    )
