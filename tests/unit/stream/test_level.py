"""The level of zstd while a stream is stored."""

from __future__ import annotations

import io
import time

import pytest

from tests.unit.stream.test_stream import MemoryChunks, fetch
from tests.unit.support.streams import stream_of
from zsnapdb.stream.chunks import Body, Codec, seal
from zsnapdb.stream.upload import UploadSettings, upload


@pytest.mark.parametrize(
    ("pause", "adaptive", "expected_levels"), [(0.05, True, range(8, 13)), (0.01, False, range(3, 4))]
)
def test_an_adaptive_level_rises_while_the_store_is_waited_for(
    pause: float, adaptive: bool, expected_levels: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(MemoryChunks):
        def put_chunk(self, index: int, body: Body, sha256: str) -> None:
            time.sleep(pause)
            super().put_chunk(index, body, sha256)

    levels: list[int] = []

    def watched(plain: memoryview, codec: Codec, level: int, *rest: object, **words: object) -> object:
        levels.append(level)
        return seal(plain, codec, level, *rest, **words)  # type: ignore[arg-type]

    monkeypatch.setattr("zsnapdb.stream.upload.seal", watched)
    chunks, data = Slow(), stream_of(4096 * 60)
    stored = upload(io.BytesIO(data), chunks, UploadSettings(4096, Codec.ZSTD, 3, 2, adaptive), lambda done: None)
    assert levels[0] == 3
    assert max(levels) in expected_levels
    assert fetch(chunks, stored) == data
