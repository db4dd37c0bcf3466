"""AES-256-GCM over chunks. The associated data says where a chunk belongs; one that was moved does not open."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from zsnapdb.errors import DamagedError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES

_IN_PLACE = hasattr(AESGCM, "encrypt_into")
"""Older versions of the library only return new bytes; it costs them a copy."""


class ChunkCipher:
    """One data key. Every body gets a random nonce: safe for 2^32 of them under one key (NIST SP 800-38D, 8.3)."""

    def __init__(self, key: bytes, key_id: str) -> None:
        """`key` has 32 bytes; `key_id` is the name the manifest gives it."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a data key has {KEY_BYTES} bytes, not {len(key)}")
        self._aead = AESGCM(key)
        self.key_id = key_id

    def encrypt(self, data: bytes | bytearray | memoryview, associated: bytes) -> bytearray:
        """Return nonce, ciphertext and tag as one body, 28 bytes longer than `data`."""
        body = bytearray(len(data) + OVERHEAD_BYTES)
        self.encrypt_into(data, associated, memoryview(body))
        return body

    def encrypt_into(self, data: bytes | bytearray | memoryview, associated: bytes, target: memoryview) -> int:
        """Write the encrypted body to the beginning of `target` and return its size.

        `data` may lie in `target`, at 12 bytes.
        """
        size = len(data) + OVERHEAD_BYTES
        nonce = os.urandom(NONCE_BYTES)
        if _IN_PLACE:
            self._aead.encrypt_into(nonce, data, associated, target[NONCE_BYTES:size])
        else:
            target[NONCE_BYTES:size] = self._aead.encrypt(nonce, data, associated)
        target[:NONCE_BYTES] = nonce
        return size

    def decrypt(self, body: bytes | bytearray | memoryview, associated: bytes) -> bytearray:
        """Return the data. DamagedError unless exactly this body was encrypted by this key for this place."""
        plain = bytearray(max(0, len(body) - OVERHEAD_BYTES))
        self.decrypt_into(body, associated, memoryview(plain))
        return plain

    def decrypt_into(self, body: bytes | bytearray | memoryview, associated: bytes, target: memoryview) -> int:
        """Write the data to the beginning of `target` and return its size.

        DamagedError as above, and then `target` holds anything.

        `target` overlaps `body` not at all, or begins at its 12th byte.
        """
        size = len(body) - OVERHEAD_BYTES
        if size < 0:
            raise DamagedError(f"{len(body)} bytes are too few for an encrypted chunk")
        if size > len(target):
            raise DamagedError(f"it holds {size} bytes, more than the {len(target)} there should be")
        whole = memoryview(body)
        try:
            if _IN_PLACE:
                self._aead.decrypt_into(whole[:NONCE_BYTES], whole[NONCE_BYTES:], associated, target[:size])
            else:
                target[:size] = self._aead.decrypt(whole[:NONCE_BYTES], whole[NONCE_BYTES:], associated)
        except InvalidTag:
            raise DamagedError("it does not decrypt: other bytes, another key, or a chunk of another place") from None
        return size
