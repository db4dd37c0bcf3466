"""One chunk: a slice of the plain stream as one stored object, and the hashes that prove both."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import threading
from enum import StrEnum
from typing import NamedTuple, Protocol

import zstandard
from blake3 import blake3

from zsnapdb.errors import DamagedError
from zsnapdb.stream.crypto import NONCE_BYTES, OVERHEAD_BYTES, ChunkCipher

Body = bytes | bytearray | memoryview
"""The stored form of a chunk, in whatever holds it without a copy."""

_DAMAGED = "the object was changed or cut after it was written; restore another backup, see `zsnapdb list`"


class Codec(StrEnum):
    """How a chunk is stored: as it is, or as one zstd frame (RFC 8878) with its content size."""

    NONE = "none"
    ZSTD = "zstd"


class Chunk(NamedTuple):
    """The description of a chunk. Sizes are in bytes, hashes in hexadecimal; `key_id` is None if it is not encrypted.

    A manifest, a journal and a binlog's description store it as an array of these five values, in this order.
    """

    plain_size: int
    plain_hash: str
    stored_size: int
    stored_sha256: str
    key_id: str | None


def plain_hash(data: Body = b"") -> blake3:
    """Return the hash that plain bytes are known by, to be fed with more: BLAKE3, five times as fast as SHA-256 where the processor has AVX2.

    Stored bytes have SHA-256, which stores prove by themselves and every host has a program for.
    """
    return blake3(data)


class ChunkPlaces(Protocol):
    """The chunks of one volume of one backup, by index from 1."""

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to: its place, and whether its volume ends with it."""

    def give_up(self) -> None:
        """Nobody waits any more: calls under way that only wait for another attempt raise soon."""


class ChunkSink(ChunkPlaces, Protocol):
    """Where they go."""

    def put_chunk(self, index: int, body: Body, sha256: str) -> None:
        """Store the chunk durably, or raise. `sha256` is the body's, in hexadecimal."""


class ChunkSource(ChunkPlaces, Protocol):
    """Where they come from."""

    def get_chunk(self, index: int) -> bytes:
        """Return the stored chunk; NotThere if it is missing."""

    def read_chunk(self, index: int, target: memoryview) -> int:
        """Write the stored chunk to the beginning of `target`, as much as fits, and return its whole size in bytes.

        NotThere if it is missing.
        """


class Workspace(threading.local):
    """What each thread uses again for chunk after chunk: zstd contexts and a buffer. One object serves all threads."""

    def __init__(self) -> None:
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}
        self._decompressor = zstandard.ZstdDecompressor()
        self._scratch = memoryview(b"")

    def compress(self, plain: Body, level: int) -> bytes:
        """Return the bytes as one frame that names their number."""
        if level not in self._compressors:
            self._compressors = {level: zstandard.ZstdCompressor(level=level, write_content_size=True)}
        return self._compressors[level].compress(plain)

    def decompress(self, frame: Body, into: memoryview) -> int:
        """Write what the frame holds to the beginning of `into` and return its bytes.

        ZstdError if it is no frame or holds more.
        """
        size: int = zstandard.frame_content_size(frame)
        if size > len(into):
            raise zstandard.ZstdError(f"the frame holds {size} bytes, more than the {len(into)} there should be")
        with self._decompressor.stream_reader(frame, read_across_frames=True) as reader:
            done: int = reader.readinto(into)
            if reader.read(1):
                raise zstandard.ZstdError(f"it holds more than the {len(into)} bytes there should be")
        return done

    def scratch(self, size: int) -> memoryview:
        """Return a buffer of that size, which is the thread's until it asks again."""
        if len(self._scratch) < size:
            # The old one goes first; some more than asked for, as the next one may be a little larger.
            self._scratch = memoryview(b"")
            self._scratch = new_slot(size + (size >> 3))
        return self._scratch[:size]


def room_for(chunk_size: int) -> int:
    """Return the bytes of a slot in which a slice lies at `NONCE_BYTES` and can be sealed in place, however badly it compresses."""
    # ZSTD_compressBound() of zstd.h, rounded up.
    return chunk_size + (chunk_size >> 8) + 1024 + OVERHEAD_BYTES


def new_slot(size: int) -> memoryview:
    """Return memory for slices that are read or written whole, again and again.

    It costs nothing until it is touched.
    """
    memory = mmap.mmap(-1, max(size, 1))
    # Large pages save page faults, where there are any.
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def seal(
    plain: memoryview,
    codec: Codec,
    level: int,
    cipher: ChunkCipher | None,
    associated: bytes,
    *,
    workspace: Workspace | None = None,
    slot: memoryview | None = None,
    known_hash: str | None = None,
) -> tuple[Body, Chunk]:
    """Return the stored form of a slice and its description. Without a cipher `associated` is not used.

    `slot` is memory of `room_for()` bytes in which `plain` lies at `NONCE_BYTES`: an encrypted chunk is written over
    it. Without one, `plain` stays as it is. `known_hash` is the slice's plain hash, where the caller has it.
    """
    size, digest = len(plain), known_hash or plain_hash(plain).hexdigest()
    body: Body = plain
    if codec is Codec.ZSTD:
        body = (workspace or Workspace()).compress(plain, level)
    if cipher is not None:
        target = slot if slot is not None else memoryview(bytearray(len(body) + OVERHEAD_BYTES))
        body = target[: cipher.encrypt_into(body, associated, target)]
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
    into: memoryview | None = None,
) -> Body:
    """Return the plain slice, proved by its hash and, if encrypted, its tag.

    DamagedError names `what` and the first thing that is wrong.

    `cipher` is that of the chunk's key id; None for a chunk that has none. `into` is where the slice may be written.
    """
    if len(body) != chunk.stored_size:
        raise DamagedError(
            f"{what}: {len(body)} bytes are stored, the manifest says {chunk.stored_size}", hint=_DAMAGED
        )
    try:
        plain = _open(body, chunk, codec, cipher, associated, workspace or Workspace(), into)
        if len(plain) == chunk.plain_size and plain_hash(plain).hexdigest() == chunk.plain_hash:
            return plain
        why = "its plain bytes do not have the BLAKE3 hash the manifest says"
    except zstandard.ZstdError as error:
        why = f"it does not decompress: {error}"
    except DamagedError as error:
        why = error.message
    # The plain hash proves a good chunk; the stored one only tells where a bad one went wrong.
    if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        why = "its stored bytes do not have the SHA-256 the manifest says"
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
    """Return the plain slice, proved by its tag if encrypted, else by the SHA-256 of its stored form.

    DamagedError says in short what is wrong.

    For readers that prove the plain bytes themselves, as `zfs receive` does by the checksum of every record. `body` is
    overwritten; with zstd the slice is written to `into`, else it lies in `body`.
    """
    if len(body) != chunk.stored_size:
        raise DamagedError(f"{len(body)} bytes are stored, the manifest says {chunk.stored_size}")
    if cipher is not None:
        target = body[NONCE_BYTES:]
        body = target[: cipher.decrypt_into(body, associated, target)]
    elif hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        raise DamagedError("its stored bytes do not have the SHA-256 the manifest says")
    if codec is Codec.ZSTD:
        try:
            body = into[: workspace.decompress(body, into[: chunk.plain_size])]
        except zstandard.ZstdError as error:
            raise DamagedError(f"it does not decompress: {error}") from error
    if len(body) != chunk.plain_size:
        raise DamagedError(f"it holds {len(body)} bytes, the manifest says {chunk.plain_size}")
    return body


def _open(
    body: Body,
    chunk: Chunk,
    codec: Codec,
    cipher: ChunkCipher | None,
    associated: bytes,
    workspace: Workspace,
    into: memoryview | None,
) -> Body:
    if cipher is not None:
        room = workspace.scratch(max(0, len(body) - OVERHEAD_BYTES)) if codec is Codec.ZSTD or into is None else into
        body = room[: cipher.decrypt_into(body, associated, room)]
    if codec is not Codec.ZSTD:
        return body
    target = into[: chunk.plain_size] if into is not None else memoryview(bytearray(chunk.plain_size))
    return target[: workspace.decompress(body, target)]


def stream_hash(chunks: tuple[Chunk, ...]) -> str:
    """Return the hash of a whole stream: SHA-256 over the chunks' plain hashes (32 bytes each), in order."""
    return hashlib.sha256(b"".join(bytes.fromhex(c.plain_hash) for c in chunks)).hexdigest()
