"""The findings of checks in documents: about a host, about what was stored, about damage."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.documents.base import At, Document, iso


class FindingFields(Document):
    """The result of a check."""

    severity: str
    what: str
    detail: str
    hint: str


class MissingFields(Document):
    """A difference between a repository and what this host stored in it."""

    kind: str
    text: str
    hint: str
    backups: tuple[str, ...]


class DamageFields(Document):
    """Known damage of a stored object."""

    name: str
    kind: str
    since: Annotated[str, At("since", iso)]
    by: str
    findings: tuple[str, ...]
