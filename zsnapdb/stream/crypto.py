"""Encryption of chunks with AES-256-GCM.

The associated data is the chunk's location, so a moved chunk cannot be decrypted.
"""

from __future__ import annotations

import os

from zsnapdb.base.errors import DamagedError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES


class ChunkCipher:
    """A cipher with one data key.

    Every body gets a random nonce. With random nonces, one key can safely encrypt 2^32 bodies (NIST SP 800-38D, 8.3).
    """

    def __init__(self, key: bytes, key_id: str) -> None:
        """`key` has 32 bytes. `key_id` is the name of the key in the manifest."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a data key has {KEY_BYTES} bytes, not {len(key)}")
        # The import is here because most commands import this module but encrypt nothing, and the library takes 5 % of
        # their start time.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aead = AESGCM(key)
        # Older versions of the library cannot write into existing memory, which costs a copy.
        self._is_in_place = hasattr(AESGCM, "encrypt_into")
        self.key_id = key_id

    def encrypt(self, data: bytes | bytearray | memoryview, associated: bytes) -> bytearray:
        """Return nonce, ciphertext and tag as one body, 28 bytes longer than `data`."""
        body = bytearray(len(data) + OVERHEAD_BYTES)
        self.encrypt_into(data, associated, memoryview(body))
        return body

    def encrypt_into(self, data: bytes | bytearray | memoryview, associated: bytes, target: memoryview) -> int:
        """Write the encrypted body to the start of `target` and return its size in bytes.

        `data` may be in `target`, at offset 12.
        """
        size = len(data) + OVERHEAD_BYTES
        nonce = os.urandom(NONCE_BYTES)
        if self._is_in_place:
            self._aead.encrypt_into(nonce, data, associated, target[NONCE_BYTES:size])
        else:
            target[NONCE_BYTES:size] = self._aead.encrypt(nonce, data, associated)
        target[:NONCE_BYTES] = nonce
        return size

    def decrypt(self, body: bytes | bytearray | memoryview, associated: bytes) -> bytearray:
        """Return the plain data. Raises DamagedError unless this key encrypted exactly this body for this location."""
        plain = bytearray(max(0, len(body) - OVERHEAD_BYTES))
        self.decrypt_into(body, associated, memoryview(plain))
        return plain

    def decrypt_into(self, body: bytes | bytearray | memoryview, associated: bytes, target: memoryview) -> int:
        """Write the plain data to the start of `target` and return its size in bytes.

        Raises DamagedError in the same cases as `decrypt`. After this error, the content of `target` is undefined.
        Either `target` does not overlap `body`, or it starts at offset 12 of `body`.
        """
        from cryptography.exceptions import InvalidTag

        size = len(body) - OVERHEAD_BYTES
        if size < 0:
            raise DamagedError(f"{len(body)} bytes are too few for an encrypted chunk")
        if size > len(target):
            raise DamagedError(f"the encrypted chunk has {size} bytes of data, expected at most {len(target)}")
        nonce, sealed = memoryview(body)[:NONCE_BYTES], memoryview(body)[NONCE_BYTES:]
        try:
            if self._is_in_place:
                self._aead.decrypt_into(nonce, sealed, associated, target[:size])
            else:
                target[:size] = self._aead.decrypt(nonce, sealed, associated)
        except InvalidTag:
            raise DamagedError(
                "the chunk does not decrypt: the bytes were changed, or belong to another key or another place"
            ) from None
        return size
