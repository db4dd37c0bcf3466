"""Checks that a store holds the chunks it accepted. This takes one listing per thousand chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from zsnapdb.base.errors import ConsistencyError, NotThere
from zsnapdb.repository.repository import VolumeChunks
from zsnapdb.stream.chunks import Chunk


def confirm(chunks: VolumeChunks, stored: Sequence[Chunk]) -> None:
    """Return if every chunk is in the store with its size. ConsistencyError names the first that is not.

    Listings of some stores lag, so a chunk that the listing does not show with its size is read itself.
    """
    listed_sizes = chunks.sizes()
    for index, chunk in enumerate(stored, 1):
        key = chunks.key(index)
        if listed_sizes.get(key) == chunk.stored_size:
            continue
        try:
            body = chunks.get_chunk(index)
        except NotThere:
            state = "is missing now"
        else:
            if len(body) == chunk.stored_size and hashlib.sha256(body).hexdigest() == chunk.stored_sha256:
                continue
            state = f"now has {len(body)} other bytes"
        raise ConsistencyError(
            f"the store accepted {key} with {chunk.stored_size} bytes, but the object {state}",
            hint="the backup was not completed; the store loses objects, or another program writes below this prefix",
        )
