"""A table of chunks is the same as a tuple of them, and a manifest is stored with it as with a tuple."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.manifests import manifest
from zsnapdb.repository.manifest import Manifest
from zsnapdb.stream.chunk_table import ChunkTable
from zsnapdb.stream.chunks import Chunk, stream_hash

SIZES = st.integers(0, (1 << 30) + (1 << 24))
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
CHUNKS = st.lists(
    st.builds(Chunk, SIZES, HASHES, SIZES, HASHES, st.sampled_from([None, "1", "2", "key.of:another-run"])), max_size=8
).map(tuple)


@given(CHUNKS, CHUNKS, st.slices(8))
def test_chunk_table_equals_its_tuple(chunks: tuple[Chunk, ...], others: tuple[Chunk, ...], part: slice) -> None:
    table = ChunkTable(chunks)
    assert (len(table), tuple(table), bool(table)) == (len(chunks), chunks, bool(chunks))
    assert table == chunks
    assert chunks == table
    assert table == ChunkTable(table)
    assert hash(table) == hash(chunks)
    assert (table == others, table == ChunkTable(others)) == (chunks == others, chunks == others)
    assert table[part] == chunks[part]
    assert [table[at] for at in range(-len(chunks), len(chunks))] == [
        chunks[at] for at in range(-len(chunks), len(chunks))
    ]
    assert list(reversed(table)) == list(reversed(chunks))
    assert stream_hash(table) == stream_hash(chunks)


@given(CHUNKS)
def test_manifest_is_stored_with_its_chunks_as_arrays(chunks: tuple[Chunk, ...]) -> None:
    made = manifest("20261120T101112Z-7f3a")
    volume = made.volumes[0].model_copy(update={"chunks": chunks})
    whole = made.model_copy(update={"volumes": (volume, *made.volumes[1:])})
    read = Manifest.decode(whole.encode(), "it")
    assert read == whole
    assert isinstance(read.volumes[0].chunks, ChunkTable)
    assert read.encode() == whole.encode()
    rows = ",".join(_array(one) for one in chunks)
    assert f'"chunks":[{rows}]'.encode() in whole.encode()


def _array(chunk: Chunk) -> str:
    key = "null" if chunk.key_id is None else f'"{chunk.key_id}"'
    return f'[{chunk.plain_size},"{chunk.plain_hash}",{chunk.stored_size},"{chunk.stored_sha256}",{key}]'


def test_chunk_table_takes_a_fifth_of_the_memory() -> None:
    chunks = tuple(Chunk(1 << 20, f"{at:064x}", 1 << 19, f"{at + 1:064x}", None) for at in range(1000))
    tuples = sum(sys.getsizeof(part) for chunk in chunks for part in (chunk, *chunk[:4]))
    assert len(ChunkTable(chunks)._rows) * 4.5 < tuples
