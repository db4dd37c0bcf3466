"""Reads every stored document of an instance: the marker, manifests, descriptions, evidence, pins, marks and leases.

A document is damaged if it does not fit its own signature or digest. Whether it says what it must, its readers check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from zsnapdb.base import foreign_text
from zsnapdb.base.errors import DamagedError, NotThere
from zsnapdb.repository import layout, marker, stored_document
from zsnapdb.repository.layout import Key, KeyPrefix
from zsnapdb.repository.repository import Repository

_READERS = 8
_LEASES = ("writer", "consolidate")


@dataclass(frozen=True)
class DocumentCheck:
    """The damage of stored documents by key, and how many were read.

    `without_digest` is the number of those that an earlier version stored without signature and digest: chance damage
    to them is found only where it breaks their form.
    """

    damage: dict[str, tuple[str, ...]]
    read: int
    without_digest: int

    def without(self, keys: Iterable[Key]) -> DocumentCheck:
        """Return the check without the damage of these documents."""
        others = set(keys)
        return replace(self, damage={key: damage for key, damage in self.damage.items() if key not in others})


NO_DOCUMENTS = DocumentCheck({}, 0, 0)


def check(repository: Repository, instance: str) -> DocumentCheck:
    """Read every document of the instance, and the marker. RepositoryError if the store cannot be reached."""
    damage: dict[str, tuple[str, ...]] = {}
    without_digest = read = 0
    with ThreadPoolExecutor(_READERS, thread_name_prefix="verify") as pool:
        for key, found in pool.map(lambda key: (key, _read_document(repository, key)), _keys(repository, instance)):
            if isinstance(found, DamagedError):
                damage[key] = (found.message,)
            elif found is not None:
                without_digest += not found
            read += found is not None
    return DocumentCheck(dict(sorted(damage.items())), read, without_digest)


def _read_document(repository: Repository, key: Key) -> bool | DamagedError | None:
    """Return whether the document has a signature or a digest, None if it was removed meanwhile, or its damage."""
    place = repository.place(key)
    try:
        body = repository.get(key)
    except NotThere:
        if key == layout.MARKER:
            return DamagedError(f"the marker {place} is missing", hint="run `zsnapdb init`, which writes it again")
        return None
    try:
        if key == layout.MARKER:
            marker.Marker.parse(body, place)
            return marker.has_digest(body)
        document = stored_document.opened(body, place)
        foreign_text.parsed(document.line)
    except DamagedError as error:
        return error
    except ValueError:
        return DamagedError(f"{place} is no document", hint="the object was altered")
    return document.has_digest


def _keys(repository: Repository, instance: str) -> Iterator[Key]:
    yield layout.MARKER
    prefixes: tuple[Callable[[str], KeyPrefix[Any]], ...] = (
        layout.manifests,
        layout.pins,
        layout.verifications,
        layout.drills,
        layout.evidence_log,
        layout.unfinished,
    )
    for prefix in prefixes:
        yield from (listed.key for listed in repository.list(prefix(instance)))
    yield from (layout.lease(f"{instance}/{name}") for name in _LEASES)
    for listed in repository.list(layout.incarnations(instance)):
        yield listed.key
        place = (instance, listed.key.incarnation)
        yield layout.complete(*place)
        yield from (one.key for one in repository.list(layout.rotated_binlogs(*place)))
        yield from (one.key for one in repository.list(layout.segments(*place)))
