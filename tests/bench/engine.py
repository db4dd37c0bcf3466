"""One run of the stream engine as a process of its own, for benchmarks: `engine.py upload|restore|make …`.

parts STREAM: the processor seconds of each part of the work on the stream, alone, as JSON. upload ROWS KEY: stdin to
the store, what was stored as JSON to the file ROWS. restore ROWS KEY: the same back, to stdout. KEY is `-` or a data
key in hexadecimal. make BYTES SAMPLE: a synthetic stream of valid records to stdout, its payloads from the file SAMPLE.
The repository is described by the environment variable BENCH_REPOSITORY, as JSON of its settings.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

T = TypeVar("T")

GUID = 0x0123456789ABCDEF
PAYLOAD = 128 << 10


def _chunks_and_cipher(key: str):  # type: ignore[no-untyped-def]
    from zsnapdb.config.repository import RepositorySettings
    from zsnapdb.repository.objects import RepositoryObjects
    from zsnapdb.repository.repository import VolumeChunks
    from zsnapdb.store.layers import open_store
    from zsnapdb.stream.crypto import ChunkCipher

    settings = RepositorySettings.model_validate(json.loads(os.environ["BENCH_REPOSITORY"]))
    objects = RepositoryObjects(*open_store(settings))
    chunks = VolumeChunks(objects, "bench", "main", os.environ.get("BENCH_BACKUP", "20260101T000000Z-0000"), "data")
    return settings, chunks, ChunkCipher(bytes.fromhex(key), "1") if key != "-" else None


def upload_stdin(rows: Path, key: str) -> None:
    """Store what comes in on stdin, as a backup does."""
    from zsnapdb.stream.buffer_pool import FIRST_CHUNK
    from zsnapdb.stream.chunks import Codec
    from zsnapdb.stream.upload import UploadSettings, upload

    settings, chunks, cipher = _chunks_and_cipher(key)
    stream = settings.stream
    adaptive = stream.level == "auto"
    level = 3 if adaptive else stream.level
    codec, first = Codec.ZSTD if level else Codec.NONE, min(FIRST_CHUNK, stream.chunk_size)
    with open(0, "rb", buffering=0) as pipe:
        done = upload(
            pipe,
            chunks,
            UploadSettings(stream.chunk_size, codec, level, stream.concurrency, adaptive, first_chunk=first),
            lambda _: None,
            cipher=cipher,
        )
    rows.write_text(json.dumps([chunk._asdict() for chunk in done.chunks]))


def restore_stdout(rows: Path, key: str) -> None:
    """Write what was stored to stdout, as a restore does."""
    from zsnapdb.stream.chunks import Chunk, Codec
    from zsnapdb.stream.download import download

    settings, chunks, cipher = _chunks_and_cipher(key)
    known = [Chunk(**row) for row in json.loads(rows.read_text())]
    ciphers = {cipher.key_id: cipher} if cipher else {}
    with open(1, "wb", buffering=0) as pipe:
        codec = Codec.ZSTD if settings.stream.level else Codec.NONE
        download(
            chunks,
            known,
            codec,
            pipe,
            concurrency=settings.stream.concurrency,
            name=str,
            on_bytes=lambda _: None,
            ciphers=ciphers,
        )


def make(size: int, sample: Path) -> None:
    """Write a stream of about `size` bytes to stdout: BEGIN, WRITE records, END."""
    with sample.open("rb") as file:
        pool = file.read(256 << 20)
    begin = struct.pack("<IIQQQIIQQ", 0, 0, 0x2F5BACBAC, 0x4 << 2 | 1, 0, 2, 0, GUID, 0).ljust(312, b"\0")
    head = bytearray(312)
    struct.pack_into("<I", head, 0, 3)
    struct.pack_into("<QQ", head, 32, PAYLOAD, GUID)
    end = struct.pack("<IIQQQQQ", 5, 0, 0, 0, 0, 0, GUID).ljust(312, b"\0")
    with open(1, "wb", buffering=0) as pipe:
        pipe.write(begin)
        places = len(pool) - PAYLOAD
        for number in range(size // (PAYLOAD + 312)):
            struct.pack_into("<Q", head, 24, number * PAYLOAD)
            # An odd stride, so that no two records near each other are alike.
            start = number * 1_000_003 % places
            for piece in (memoryview(head), memoryview(pool)[start : start + PAYLOAD]):
                while piece:
                    piece = piece[pipe.write(piece) :]
        pipe.write(end)


def parts(stream: Path) -> None:
    """Seal the stream slice by slice on one thread, and write what each part of that took."""
    from hashlib import sha256

    from zsnapdb.stream.chunks import Workspace, plain_hash, room_for
    from zsnapdb.stream.crypto import NONCE_BYTES, ChunkCipher
    from zsnapdb.stream.send_stream_checks import Walker

    chunk, level = 32 << 20, int(os.environ["BENCH_LEVEL"])
    workspace, walker, cipher = Workspace(), Walker(), ChunkCipher(bytes(32), "1")
    target = memoryview(bytearray(room_for(chunk)))
    buffer = bytearray(chunk)
    took = dict.fromkeys(("zstd", "blake3 plain", "aes-gcm", "sha256 stored", "records"), 0.0)

    def timed(name: str, work: Callable[[], T]) -> T:
        began = time.thread_time()
        done = work()
        took[name] += time.thread_time() - began
        return done

    with stream.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            plain = memoryview(buffer)[:size]
            timed("records", lambda: walker.feed(plain))  # noqa: B023 - called at once
            timed("blake3 plain", lambda: plain_hash(plain).digest())  # noqa: B023
            room = target[NONCE_BYTES:]
            frame = room[: timed("zstd", lambda: workspace.compress(plain, level, room))]  # noqa: B023
            sealed = timed("aes-gcm", lambda: cipher.encrypt_into(frame, b"", target))  # noqa: B023
            timed("sha256 stored", lambda: sha256(target[:sealed]).digest())  # noqa: B023
    print(json.dumps(took))


def main() -> None:
    """Do what the arguments say, in a process like that of a command."""
    from zsnapdb.cli.process_attributes import collect_rarely

    collect_rarely()
    what, *words = sys.argv[1:]
    if what == "make":
        make(int(words[0]), Path(words[1]))
    elif what == "parts":
        parts(Path(words[0]))
    else:
        (upload_stdin if what == "upload" else restore_stdout)(Path(words[0]), words[1])


if __name__ == "__main__":
    main()
