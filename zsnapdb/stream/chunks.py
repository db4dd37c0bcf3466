"""Chunks: slices of the plain stream, each stored as one object, with hashes of the plain and the stored bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple, Protocol

import zstandard
from blake3 import blake3
from pydantic import Field

from zsnapdb.base.errors import DamagedError
from zsnapdb.base.patterns import KeyId, Sha256
from zsnapdb.stream.buffer_pool import SlotPool
from zsnapdb.stream.crypto import NONCE_BYTES, OVERHEAD_BYTES, ChunkCipher

Body = bytes | bytearray | memoryview
"""The bytes of a chunk, in any type that avoids a copy."""

_DAMAGED = "the object was changed or truncated after it was written; restore another backup, see `zsnapdb list`"


_MOST_WINDOW = 1 << 27
"""Maximum zstd window in bytes, which is the window of the highest level.

A forged frame may request a larger window.
"""


class Codec(StrEnum):
    """The format of stored chunks: uncompressed, or one zstd frame (RFC 8878) with its content size."""

    NONE = "none"
    ZSTD = "zstd"


ChunkSize = Annotated[int, Field(ge=0, le=(1 << 30) + (1 << 24))]
"""A size in bytes: at most the largest configurable chunk size plus the overhead of incompressible data."""


class Chunk(NamedTuple):
    """The description of a chunk. Sizes are in bytes, hashes in hexadecimal. `key_id` is None without encryption.

    Manifests, journals and binlog descriptions store a chunk as an array of the five field values, in the order of the
    fields.
    """

    plain_size: ChunkSize
    plain_hash: Sha256
    stored_size: ChunkSize
    stored_sha256: Sha256
    key_id: KeyId | None


NO_CHUNK = Chunk(0, "0" * 64, 0, "0" * 64, None)
"""Placeholder for a chunk that is not stored yet."""


def plain_hash(data: Body = b"") -> blake3:
    """Return a BLAKE3 hash object of the plain bytes. More bytes can be added to the object.

    BLAKE3 is five times as fast as SHA-256 on a CPU with AVX2. Stored bytes are hashed with SHA-256, because stores can
    verify this hash and every host has a program for it.
    """
    return blake3(data)


class ChunkPlaces(Protocol):
    """The stored chunks of one volume of one backup. The first chunk has index 1."""

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return the associated data of an encrypted chunk: its location, and whether it is its volume's last chunk."""

    def give_up(self) -> None:
        """Stop retrying. A call that waits for its next attempt raises an error instead."""


class ChunkSink(ChunkPlaces, Protocol):
    """A writer of the chunks of a volume."""

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk durably, or raise an error. `sha256` is the hexadecimal hash of the body."""


class ChunkSource(ChunkPlaces, Protocol):
    """A reader of the stored chunks of a volume."""

    def get_chunk(self, index: int) -> bytes:
        """Return the stored chunk. Raises NotFound if it is missing."""

    def read_chunk(self, index: int, target: memoryview) -> int:
        """Copy the stored chunk into `target`, and return the chunk's full size in bytes.

        If the chunk is larger than `target`, only the beginning of the chunk is copied.

        Raises NotFound if the chunk is missing.
        """


class Workspace(threading.local):
    """The zstd contexts that each thread reuses for all its chunks. All threads share one workspace."""

    def __init__(self) -> None:
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)

    def compress(self, plain: Body, level: int, into: memoryview) -> int:
        """Write the bytes as one zstd frame with its content size to the start of `into`. Return the frame's size.

        Raises ZstdError if the frame does not fit; `room_for()` bytes are always enough.
        """
        if level not in self._compressors:
            self._compressors = {level: zstandard.ZstdCompressor(level=level, write_content_size=True)}
        with self._compressors[level].stream_reader(plain, size=len(plain)) as reader:
            done: int = reader.readinto(into)
            if reader.read(1):
                raise zstandard.ZstdError(f"the frame does not fit in {len(into)} bytes")
        return done

    def decompress(self, frame: Body, into: memoryview) -> int:
        """Write the content of the frame to the start of `into`. Return the number of bytes.

        Raises ZstdError if `frame` is not a zstd frame, or if the content does not fit.
        """
        size: int = zstandard.frame_content_size(frame)
        if size > len(into):
            raise zstandard.ZstdError(f"the frame contains {size} bytes, expected at most {len(into)}")
        with self._decompressor.stream_reader(frame, read_across_frames=True) as reader:
            done: int = reader.readinto(into)
            if reader.read(1):
                raise zstandard.ZstdError(f"the frame contains more than the expected {len(into)} bytes")
        return done


def room_for(size: int) -> int:
    """Return how many bytes the stored form of a slice of this size can need, even if the slice is incompressible."""
    # ZSTD_compressBound() of zstd.h, rounded up.
    return size + (size >> 8) + 1024 + OVERHEAD_BYTES


def seal(
    plain: memoryview,
    codec: Codec,
    level: int,
    cipher: ChunkCipher | None,
    associated: bytes,
    *,
    workspace: Workspace | None = None,
    into: memoryview | None = None,
    known_hash: str | None = None,
) -> tuple[Body, Chunk]:
    """Return the stored form of a slice and the chunk's description. Without a cipher, `associated` is ignored.

    `into` is memory of `room_for()` bytes for the stored form. An uncompressed slice may itself be in this memory, at
    offset `NONCE_BYTES`; encryption overwrites the slice. `known_hash` is the slice's plain hash, if the caller has it.
    """
    size, digest = len(plain), known_hash or plain_hash(plain).hexdigest()
    body: Body = plain
    room = into
    if room is None:
        room = memoryview(bytearray(room_for(size) if (codec, cipher) != (Codec.NONE, None) else 0))
    if codec is Codec.ZSTD:
        frame = room[NONCE_BYTES:]
        body = frame[: (workspace or Workspace()).compress(plain, level, frame)]
    if cipher is not None:
        body = room[: cipher.encrypt_into(body, associated, room)]
    return body, Chunk(size, digest, len(body), hashlib.sha256(body).hexdigest(), cipher.key_id if cipher else None)


def unseal(
    body: Body,
    chunk: Chunk,
    codec: Codec,
    cipher: ChunkCipher | None,
    associated: bytes,
    what: str,
    *,
    workspace: Workspace | None = None,
    memory: SlotPool | None = None,
    into: memoryview | None = None,
) -> Body:
    """Return the plain slice, verified by its hash and, if the chunk is encrypted, by its tag.

    `cipher` is the cipher for the chunk's key id; None if the chunk has no key id. The slice may be written to `into`.
    `memory` is the pool for temporary memory. If a check fails, raises DamagedError with `what` and the failed check.
    """
    if len(body) != chunk.stored_size:
        raise DamagedError(
            f"{what}: the object has {len(body)} bytes, the manifest says {chunk.stored_size}", hint=_DAMAGED
        )
    try:
        plain = _open(body, chunk, codec, cipher, associated, workspace or Workspace(), memory or SlotPool(), into)
        if len(plain) == chunk.plain_size and plain_hash(plain).hexdigest() == chunk.plain_hash:
            return plain
        why = "the plain bytes do not have the BLAKE3 hash in the manifest"
    except zstandard.ZstdError as error:
        why = f"the bytes cannot be decompressed: {error}"
    except DamagedError as error:
        why = error.message
    # The plain hash proves that a chunk is good. The stored hash only shows whether a bad chunk was damaged in the
    # store.
    if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        why = "the stored bytes do not have the SHA-256 hash in the manifest"
    raise DamagedError(f"{what}: {why}", hint=_DAMAGED)


def unseal_in_place(
    body: memoryview,
    chunk: Chunk,
    codec: Codec,
    cipher: ChunkCipher | None,
    associated: bytes,
    workspace: Workspace,
    into: memoryview,
) -> memoryview:
    """Return the plain slice, verified by its tag (encrypted chunk) or by the SHA-256 of its stored form.

    This function is for readers that verify the plain bytes themselves, as `zfs receive` does with the checksum of
    every record. `body` is overwritten. With zstd the slice is written to `into`, otherwise it stays in `body`. Raises
    DamagedError with the problem, but without the object's name.
    """
    if len(body) != chunk.stored_size:
        raise DamagedError(f"the object has {len(body)} bytes, the manifest says {chunk.stored_size}")
    if cipher is not None:
        target = body[NONCE_BYTES:]
        body = target[: cipher.decrypt_into(body, associated, target)]
    elif hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        raise DamagedError("the stored bytes do not have the SHA-256 hash in the manifest")
    if codec is Codec.ZSTD:
        try:
            body = into[: workspace.decompress(body, into[: chunk.plain_size])]
        except zstandard.ZstdError as error:
            raise DamagedError(f"the bytes cannot be decompressed: {error}") from error
    if len(body) != chunk.plain_size:
        raise DamagedError(f"the chunk has {len(body)} plain bytes, the manifest says {chunk.plain_size}")
    return body


def _open(
    body: Body,
    chunk: Chunk,
    codec: Codec,
    cipher: ChunkCipher | None,
    associated: bytes,
    workspace: Workspace,
    memory: SlotPool,
    into: memoryview | None,
) -> Body:
    if codec is not Codec.ZSTD:
        return body if cipher is None else _decrypted(body, cipher, associated, into)
    target = into[: chunk.plain_size] if into is not None else memoryview(bytearray(chunk.plain_size))
    if cipher is None:
        return target[: workspace.decompress(body, target)]
    with memory.lent(len(body)) as room:
        return target[: workspace.decompress(_decrypted(body, cipher, associated, room), target)]


def _decrypted(body: Body, cipher: ChunkCipher, associated: bytes, into: memoryview | None) -> memoryview:
    room = into if into is not None else memoryview(bytearray(max(0, len(body) - OVERHEAD_BYTES)))
    return room[: cipher.decrypt_into(body, associated, room)]


def stream_hash(chunks: Sequence[Chunk]) -> str:
    """Return the hash of a complete stream: SHA-256 over the chunks' plain hashes (32 bytes each), in order."""
    return hashlib.sha256(b"".join(bytes.fromhex(c.plain_hash) for c in chunks)).hexdigest()
