"""The digests of the small documents that this host adopted or stored without a signature. Pure.

The digests identify the documents of this host. A host that begins to sign later still trusts the documents that it
stored without a signature. On a host that does not sign, only these documents are used to judge an objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from zsnapdb.base.patterns import Sha256
from zsnapdb.planning.repository.host_backup_record import RecordPart

DRILLS, CHECKS, MARKS, PINS = "drills", "checks", "marks", "pins"
_MOST = {DRILLS: 400, CHECKS: 50, MARKS: 50, PINS: 1000}
"""The maximum number of recorded documents per kind. Readers need only the newest documents."""
_MOST_ELSEWHERE = 10_000
_MOST_REPLACED = 8
"""The maximum number of recorded documents for a place where each new document replaces the former one.

The host records a new document before the replacement. Readers find the former document until the replacement, and
after some killed runs.
"""

Place = Annotated[str, Field(pattern=r"^[a-z]+(/[A-Za-z0-9_.-]+){0,2}$", max_length=400)]


def incarnation(name: str) -> str:
    """Return the place for the description of a binlog history."""
    return f"incarnation/{name}"


def complete(incarnation: str) -> str:
    """Return the place for the record of the time up to which a history is complete.

    Each new record replaces the previous record.
    """
    return f"complete/{incarnation}"


def segments(incarnation: str, file: str) -> str:
    """Return the place for the segment descriptions of an active binlog."""
    return f"segments/{incarnation}/{file}"


@dataclass(frozen=True)
class RecordedDigests:
    """The rotated binlogs of one record by the digests of their descriptions, and the record's incarnations.

    Digests are stored as bytes, which need half as much memory as text.
    """

    digests: frozenset[bytes] = frozenset()
    incarnations: frozenset[str] = frozenset()


class OwnDocuments(RecordPart):
    """The record of the documents that this host stored or adopted: the SHA-256 of their lines, by place.

    A place consists of a kind of document and, for archive parts, the history and the file.
    """

    format: Literal[1] = 1
    digests: dict[Place, tuple[Sha256, ...]] = Field(default_factory=dict)

    def with_digests(self, place: str, digests: Sequence[str]) -> OwnDocuments:
        """Return the record with more documents of a place. If there are too many, the oldest documents are dropped."""
        most = _MOST_REPLACED if place.startswith(("incarnation/", "complete/")) else _MOST.get(place, _MOST_ELSEWHERE)
        known = [one for one in self.digests.get(place, ()) if one not in digests]
        return self.model_copy(update={"digests": {**self.digests, place: (*known, *digests)[-most:]}})

    def with_places(self, places: Mapping[str, Sequence[str]]) -> OwnDocuments:
        record = self
        for place, digests in places.items():
            record = record.with_digests(place, digests)
        return record

    def without(self, place: str) -> OwnDocuments:
        return self.model_copy(update={"digests": {name: one for name, one in self.digests.items() if name != place}})
