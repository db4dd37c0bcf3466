"""What a host remembers of its small documents."""

from __future__ import annotations

import hashlib

from zsnapdb.planning.repository import document_digests
from zsnapdb.planning.repository.document_digests import OwnDocuments


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def test_a_document_is_known_until_its_successor_is_stored() -> None:
    """It is recorded before it replaces the one before, which others read until then."""
    place, record = document_digests.complete("20261128T000000Z-0001"), OwnDocuments()
    for number in range(100):
        record = record.with_digests(place, (digest(number),))
        assert {digest(number), digest(max(0, number - 1))} <= set(record.digests[place])
    assert len(record.digests[place]) < 10
