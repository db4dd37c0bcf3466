"""Whether a store really has what it said it took. It costs one listing per thousand chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from zsnapdb.errors import ConsistencyError, NotThere
from zsnapdb.repository.repository import VolumeChunks
from zsnapdb.stream.chunks import Chunk


def confirm(chunks: VolumeChunks, stored: Sequence[Chunk]) -> None:
    """Return if every chunk is in the store with its size; ConsistencyError names the first that is not.

    A chunk the listing does not show as it should is read itself: listings of some stores lag behind.
    """
    there = chunks.sizes()
    for index, chunk in enumerate(stored, 1):
        key = chunks.key(index)
        if there.get(key) == chunk.stored_size:
            continue
        try:
            body = chunks.get_chunk(index)
        except NotThere:
            found = "is not there"
        else:
            if len(body) == chunk.stored_size and hashlib.sha256(body).hexdigest() == chunk.stored_sha256:
                continue
            found = f"has {len(body)} other bytes"
        raise ConsistencyError(
            f"the store said that it took {key} of {chunk.stored_size} bytes, and it {found}",
            hint="the backup was not called good; the store loses objects, or something else writes below this prefix",
        )
