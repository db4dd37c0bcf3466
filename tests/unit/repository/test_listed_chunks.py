"""The listing of a volume is compared with its manifest: each difference is named once, and nothing else."""

from __future__ import annotations

from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st

from zsnapdb.repository import layout
from zsnapdb.repository.objects import RepositoryObjects
from zsnapdb.repository.repository import VolumeChunks
from zsnapdb.store.base import StoredObject
from zsnapdb.stream.chunks import Chunk

ID = "20261120T101112Z-7f3a"
SIZES = st.lists(st.integers(0, 3), max_size=6)


@given(SIZES, st.lists(st.none() | st.integers(0, 3), max_size=8))
def test_listing_differs_exactly_where_a_chunk_differs(wanted: list[int], stored: list[int | None]) -> None:
    keys = [layout.chunk("main", ID, "data", index) for index in range(1, len(stored) + 1)]
    objects = [StoredObject(key, size) for key, size in zip(keys, stored, strict=True) if size is not None]
    store = Mock(list=lambda prefix: [one for one in objects if one.key.startswith(prefix)])
    chunks = VolumeChunks(RepositoryObjects(store, ""), "0123", "main", ID, "data")
    listed = chunks.compare([Chunk(size, "0" * 64, size, "0" * 64, None) for size in wanted])
    there = [*stored, *[None] * len(wanted)]
    unfit = [index for index, size in enumerate(wanted, 1) if there[index - 1] != size]
    assert list(listed.unfit) == unfit
    assert [index for index in unfit if "is missing" in listed.unfit[index]] == [
        index for index in unfit if there[index - 1] is None
    ]
    assert all(chunks.key(index) in text for index, text in listed.unfit.items())
    assert listed.archived == ()
