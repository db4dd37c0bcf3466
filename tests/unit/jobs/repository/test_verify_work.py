"""A deep verify of a volume looks at each chunk a fixed number of times, however many chunks there are."""

from __future__ import annotations

from typing import Any, SupportsIndex, cast

import pytest

from tests.unit.support.manifests import manifest as example
from tests.unit.support.streams import begin, end, write
from zsnapdb.jobs.base.events import SILENT
from zsnapdb.jobs.repository.verify import Reader
from zsnapdb.repository.manifest import VolumePart, expected_stream
from zsnapdb.repository.repository import Repository
from zsnapdb.stream.chunks import Chunk, Codec, seal, stream_hash


class CountedChunks(tuple[Chunk, ...]):
    """Chunks that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        counted = range(len(self))[index] if isinstance(index, slice) else (index,)
        CountedChunks.looks += len(counted)
        return super().__getitem__(index)

    def __iter__(self) -> Any:
        CountedChunks.looks += len(self)
        return super().__iter__()


class Simulated:
    """A repository with one volume of many chunks; the WRITE records between BEGIN and END are all the same."""

    def __init__(self, count: int) -> None:
        volume: VolumePart = example().volumes[0]
        body = write(bytes(8), guid=volume.guid)
        first = begin(guid=volume.guid, base=0, name=expected_stream(volume).name)
        parts = (first, body, end(guid=volume.guid))
        sealed = [seal(memoryview(part), Codec.NONE, 0, None, b"") for part in parts]
        rows = [sealed[0][1], *[sealed[1][1]] * (count - 2), sealed[2][1]]
        self.bodies = [bytes(stored) for stored, _ in sealed]
        self.count = count
        self.volume = volume.model_copy(
            update={
                "chunks": CountedChunks(rows),
                "codec": Codec.NONE,
                "plain_size": sum(chunk.plain_size for chunk in rows),
                "sha256": stream_hash(tuple(rows)),
            }
        )

    def chunks_of(self, *what: object) -> Simulated:
        return self

    def ciphers(self, *what: object) -> dict[str, object]:
        return {}

    def key(self, index: int) -> str:
        return str(index)

    def associated(self, index: int, *, last: bool) -> bytes:
        return b""

    def get_chunk(self, index: int) -> bytes:
        return self.bodies[0 if index == 1 else 2 if index == self.count else 1]


@pytest.mark.parametrize("count", [100, 1_000, 10_000])
def test_the_work_grows_with_the_number_of_chunks_and_not_faster(count: int) -> None:
    simulated = Simulated(count)
    reader = Reader(cast(Repository, simulated), 2, 1, SILENT)
    CountedChunks.looks = 0
    assert reader.read(example(), simulated.volume, set()) == []
    assert reader.done == simulated.volume.stored_size
    assert CountedChunks.looks <= 6 * count
