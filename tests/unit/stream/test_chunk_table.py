"""A table of chunks is the same as a tuple of them, and a manifest is stored with it as with a tuple."""

from __future__ import annotations

import json
import re
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.support.manifests import manifest, of_kind
from zsnapdb.base.errors import DamagedError
from zsnapdb.repository.manifest import ChunkTable, ChunkTotals, Manifest, decode
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
    read = decode(whole.encode(), "it")
    assert read == Manifest.decode(whole.encode(), "it")
    assert read == whole
    assert isinstance(read.volumes[0].chunks, ChunkTable)
    assert read.encode() == whole.encode()
    rows = ",".join(_array(one) for one in chunks)
    assert f'"chunks":[{rows}]'.encode() in whole.encode()


def _array(chunk: Chunk) -> str:
    key = "null" if chunk.key_id is None else f'"{chunk.key_id}"'
    return f'[{chunk.plain_size},"{chunk.plain_hash}",{chunk.stored_size},"{chunk.stored_sha256}",{key}]'


def test_chunk_table_takes_a_quarter_of_the_memory() -> None:
    chunks = tuple(Chunk(1 << 20, f"{at:064x}", 1 << 19, f"{at + 1:064x}", None) for at in range(1000))
    tuples = sum(sys.getsizeof(part) for chunk in chunks for part in (chunk, *chunk[:4]))
    table = ChunkTable(chunks)
    assert sum(sys.getsizeof(getattr(table, name)) for name in table.__slots__) * 4 < tuples


def large(rows: int) -> Manifest:
    """Return a manifest with two tables of so many rows."""
    made = manifest("20261120T101112Z-7f3a")
    volumes = []
    for role in ("data", "parent"):
        chunks = tuple(Chunk(at, f"{at:064x}", at + 1, f"{at + 2:064x}", [None, "1"][at % 2]) for at in range(rows))
        volumes.append(made.volumes[0].model_copy(update={"role": role, "chunks": chunks}))
    return made.model_copy(update={"volumes": tuple(volumes)})


def test_manifest_of_many_pieces_is_read_whole() -> None:
    made = large(5000)
    read = decode(made.encode(), "it")
    assert read == made
    assert (read.stored_size, read.volumes[0].table.key_ids) == (made.stored_size, (None, "1"))


@given(CHUNKS)
def test_totals_are_those_of_the_table(chunks: tuple[Chunk, ...]) -> None:
    table, totals = ChunkTable(chunks), ChunkTotals(chunks)
    assert (len(totals), totals.stored_size, totals.key_ids) == (len(table), table.stored_size, table.key_ids)
    with pytest.raises(TypeError, match="dropped"):
        _ = totals[0]
    with pytest.raises(TypeError, match="dropped"):
        tuple(totals)


@pytest.mark.parametrize(("kind", "share"), [(ChunkTable, 1.0), (ChunkTotals, 0.4)])
def test_manifest_is_read_in_less_memory_than_its_size(kind: type[ChunkTable], share: float) -> None:
    line = large(20_000).encode()
    decode(large(1).encode(), "it", kind)
    tracemalloc.start()
    try:
        decode(line, "it", kind)
        assert tracemalloc.get_traced_memory()[1] < share * len(line)
    finally:
        tracemalloc.stop()


ROW = f'[1,"{"0" * 64}",2,"{"1" * 64}",null]'
SPELLINGS: dict[str, Callable[[str], str]] = {
    "spaces": lambda text: json.dumps(json.loads(text)),
    "no rows": lambda text: text.replace(f"[{ROW}]", "[]"),
    "second table of a volume": lambda text: text.replace('"chunks":', f'"chunks":[{ROW},{ROW}],"chunks":'),
    "table outside of the volumes": lambda text: text.replace('"format":1', f'"format":1,"more":{{"chunks":[{ROW}]}}'),
    "table in a string": lambda text: text.replace('"host":""', json.dumps({"host": f',"chunks":[{ROW}]'})[1:-1]),
    "row as an object": lambda text: text.replace(
        ROW, json.dumps(dict(zip(Chunk._fields, json.loads(ROW), strict=True)))
    ),
    "short row": lambda text: text.replace(ROW, "[1]"),
    "wrong hash": lambda text: text.replace("0" * 64, "0" * 63 + "g"),
    "bracket in a key id": lambda text: text.replace("null]]", '"]]"]]'),
    "no end": lambda text: text.replace("]]", "] ]"),
    "cut": lambda text: text[:-40],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", ["server", "unknown"])
def test_manifest_is_read_as_its_model_reads_it(spelling: str, kind: str) -> None:
    made = manifest() if kind == "server" else of_kind("unknown", chunks=json.loads(f"[{ROW}]"))
    chunks = (Chunk(*json.loads(ROW)),)
    made = made.model_copy(update={"volumes": (made.volumes[0].model_copy(update={"chunks": chunks}),)})
    text = made.encode().decode()
    changed = SPELLINGS[spelling](text)
    assert changed != text
    try:
        expected = Manifest.decode(changed.encode(), "manifest it")
    except DamagedError as damage:
        with pytest.raises(DamagedError, match=re.escape(damage.message)):
            decode(changed.encode(), "it")
    else:
        assert decode(changed.encode(), "it") == expected
