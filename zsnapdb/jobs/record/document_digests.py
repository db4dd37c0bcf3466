"""The record of the small documents that this host stored without a signature: its creation, and adopted documents."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zsnapdb.base.errors import DamagedError, NotFound
from zsnapdb.jobs.base.document_digests import OwnDocumentFiles
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.planning.repository import document_digests
from zsnapdb.repository import layout
from zsnapdb.repository.layout import Key
from zsnapdb.repository.repository import Repository
from zsnapdb.repository.stored_document import digest_of

if TYPE_CHECKING:
    from zsnapdb.repository.binlog_contents import Archive

DocumentPlaces = dict[str, list[str]]


def files_of(instance: Instance) -> OwnDocumentFiles:
    """Return the files with the documents of the instance that this host knows as its own."""
    return OwnDocumentFiles(instance.host.records / instance.name, instance.events)


def documents_of(repository: Repository, instance: str, archive: Archive) -> DocumentPlaces:
    """Return the verified small documents in the repository, by place."""
    places: DocumentPlaces = {}
    for one in archive.incarnations:
        kinds: tuple[tuple[str, Key], ...] = (
            (document_digests.incarnation(one.id), layout.incarnation(instance, one.id)),
            (document_digests.complete(one.id), layout.complete(instance, one.id)),
        )
        for place, key in kinds:
            if key in archive.lines:
                places[place] = [archive.lines[key]]
    for file in archive.files:
        segments = (layout.segment(instance, file.incarnation, file.name, s.start, s.end) for s in file.segments)
        lines = [archive.lines[segment] for segment in segments]
        places |= {document_digests.segments(file.incarnation, file.name): lines} if lines else {}
    for place, keys in _small(repository, instance):
        for small in keys:
            with contextlib.suppress(DamagedError, NotFound):
                places.setdefault(place, []).append(digest_of(repository.verified(small)))
    return places


def _small(repository: Repository, instance: str) -> Iterator[tuple[str, list[Key]]]:
    yield document_digests.DRILLS, [listed.key for listed in repository.list(layout.drills(instance))]
    yield document_digests.CHECKS, [listed.key for listed in repository.list(layout.verifications(instance))]
    yield document_digests.MARKS, [listed.key for listed in repository.list(layout.unfinished(instance))]
    yield document_digests.PINS, [listed.key for listed in repository.list(layout.pins(instance))]
