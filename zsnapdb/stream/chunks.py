"""One chunk: a slice of the plain stream as one stored object, and the hashes that prove both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import zstandard

from zsnapdb.errors import DamagedError
from zsnapdb.stream.crypto import ChunkCipher

Body = bytes | bytearray | memoryview
"""The stored form of a chunk, in whatever holds it without a copy."""


class Codec(StrEnum):
    """How a chunk is stored: as it is, or as one zstd frame (RFC 8878) with its content size."""

    NONE = "none"
    ZSTD = "zstd"


@dataclass(frozen=True)
class Chunk:
    """What the manifest keeps of a chunk. Sizes in bytes, hashes SHA-256 in hexadecimal; `key_id` is None if not encrypted."""

    plain_size: int
    plain_sha256: str
    stored_size: int
    stored_sha256: str
    key_id: str | None = None


class ChunkStore(Protocol):
    """Where the chunks of one volume of one backup go and come from, by index from 1."""

    def put_chunk(self, index: int, body: Body) -> None:
        """Store the chunk durably, or raise."""

    def get_chunk(self, index: int) -> bytes:
        """Return the stored chunk; NotThere if it is missing."""

    def associated(self, index: int, *, last: bool) -> bytes:
        """Return what an encrypted chunk is bound to: its place, and whether its volume ends with it."""


def seal(plain: memoryview, codec: Codec, level: int, cipher: ChunkCipher | None, associated: bytes) -> tuple[Body, Chunk]:
    """Return the stored form of a slice and its description. Without a cipher `associated` is not used."""
    body: Body = plain
    if codec is Codec.ZSTD:
        body = zstandard.ZstdCompressor(level=level, write_content_size=True).compress(plain)
    if cipher is not None:
        body = cipher.encrypt(body, associated)
    plain_hash = hashlib.sha256(plain).hexdigest()
    stored_hash = plain_hash if body is plain else hashlib.sha256(body).hexdigest()
    return body, Chunk(len(plain), plain_hash, len(body), stored_hash, cipher.key_id if cipher else None)


def unseal(body: Body, chunk: Chunk, codec: Codec, cipher: ChunkCipher | None, associated: bytes, what: str) -> Body:
    """Return the plain slice, proved by both hashes and, if encrypted, its tag. DamagedError names `what` and the first thing that is wrong.

    `cipher` is that of the chunk's key id; None for a chunk that has none.
    """
    hint = "the object was changed or cut after it was written; restore another backup, see `zsnapdb list`"
    if len(body) != chunk.stored_size:
        raise DamagedError(f"{what}: {len(body)} bytes are stored, the manifest says {chunk.stored_size}", hint=hint)
    if hashlib.sha256(body).hexdigest() != chunk.stored_sha256:
        raise DamagedError(f"{what}: its stored bytes do not have the SHA-256 the manifest says", hint=hint)
    plain = body
    if cipher is not None:
        try:
            plain = cipher.decrypt(plain, associated)
        except DamagedError as error:
            raise DamagedError(f"{what}: {error.message}", hint=hint) from error
    if codec is Codec.ZSTD:
        try:
            plain = zstandard.ZstdDecompressor().decompress(plain, max_output_size=chunk.plain_size)
        except zstandard.ZstdError as error:
            raise DamagedError(f"{what}: it does not decompress: {error}", hint=hint) from error
    if len(plain) != chunk.plain_size or hashlib.sha256(plain).hexdigest() != chunk.plain_sha256:
        raise DamagedError(f"{what}: its plain bytes do not have the SHA-256 the manifest says", hint=hint)
    return plain


def stream_hash(chunks: tuple[Chunk, ...]) -> str:
    """Return the hash of a whole stream: SHA-256 over the chunks' plain hashes (32 bytes each), in order."""
    return hashlib.sha256(b"".join(bytes.fromhex(c.plain_sha256) for c in chunks)).hexdigest()
