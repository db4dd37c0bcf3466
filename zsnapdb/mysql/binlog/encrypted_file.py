"""Binlogs that MySQL encrypted as a whole, read as if they were plain: byte for byte what the server logged.

Sources: refman 8.4, "Encrypting Binary Log Files and Relay Log Files" (a password for each file, in a header of 512
bytes that is encrypted with a key of the keyring; AES-256-CTR). The header and the derivation of the key are as
sql/rpl_log_encryption.cc and sql/stream_cipher.cc write them; that they are right is tested with servers (the campaign
encrypted_binlogs, tests/system/test_binlog_tail.py). Positions of the server count from behind the header.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import BinaryIO

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from typing_extensions import Buffer

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.binlog_keys import BinlogKeys, missing_key
from zsnapdb.mysql.binlog.events import ENCRYPTED_MAGIC, MAGIC

HEADER_BYTES = 512
_VERSION = 1
_KEY_NAME, _PASSWORD, _PASSWORD_IV = 1, 2, 3
_FIXED = {_PASSWORD: 32, _PASSWORD_IV: 16}
_BLOCK = 16
_ATTEMPTS = 3
"""The server writes the header anew when its master key is rotated: who reads meanwhile reads it again."""


def decrypted_file(file: BinaryIO, path: Path, keys: BinlogKeys) -> DecryptedFile:
    """Return the plain bytes of an open binlog that MySQL encrypted; PreflightError if its key is not there.

    A file that has only a part of its header is empty.
    """
    for _ in range(_ATTEMPTS):
        file.seek(0)
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return DecryptedFile(file, None, b"", b"")
        fields = _fields(header, path)
        name = fields[_KEY_NAME].decode(errors="replace")
        key = keys.key(name)
        if key is None or len(key) != 32:
            continue
        file_key, nonce = _file_key(key, fields)
        first = file.read(len(MAGIC))
        if _stream(file_key, nonce, 0).update(first) in (MAGIC, b""):
            return DecryptedFile(file, name, file_key, nonce)
    raise missing_key(name, f"binlog {path.name}", keys.files)


def _fields(header: bytes, path: Path) -> dict[int, bytes]:
    """Return the fields of the header: a byte each for their kind, then their length if it is not fixed."""
    fields: dict[int, bytes] = {}
    at = len(ENCRYPTED_MAGIC) + 1
    while at < HEADER_BYTES - 1 and header[at] and header[len(ENCRYPTED_MAGIC)] == _VERSION:
        kind, at = header[at], at + 1
        length = _FIXED.get(kind)
        if length is None:
            length, at = header[at], at + 1
        fields[kind] = header[at : at + length]
        at += length
    if not fields.keys() >= {_KEY_NAME, *_FIXED} or any(len(fields[kind]) != size for kind, size in _FIXED.items()):
        raise PreflightError(
            f"binlog {path.name} is encrypted in a form that is not known",
            hint="set binlog_encryption=OFF, or use a release of zsnapdb that knows this server",
        )
    return fields


def _file_key(key: bytes, fields: dict[int, bytes]) -> tuple[bytes, bytes]:
    """Return the key of the file and the nonce of its counter."""
    opening = Cipher(algorithms.AES(key), modes.CBC(fields[_PASSWORD_IV])).decryptor()
    derived = hashlib.sha512(opening.update(fields[_PASSWORD]) + opening.finalize()).digest()
    return derived[:32], derived[32:40]


def _stream(key: bytes, nonce: bytes, at: int) -> CipherContext:
    """Return the cipher of a file at a place behind its header."""
    block, inside = divmod(at, _BLOCK)
    stream = Cipher(algorithms.AES(key), modes.CTR(nonce + block.to_bytes(_BLOCK - len(nonce), "big"))).decryptor()
    stream.update(bytes(inside))
    return stream


class DecryptedFile(io.RawIOBase):
    """The plain bytes of an encrypted binlog. It may grow while it is read.

    `key_name` None: the file has only a part of its header, and no bytes yet.
    """

    def __init__(self, file: BinaryIO, key_name: str | None, key: bytes, nonce: bytes) -> None:
        super().__init__()
        self.name, self.key_name = file.name, key_name
        self._file, self._key, self._nonce = file, key, nonce
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        size = max(0, self._file.seek(0, os.SEEK_END) - HEADER_BYTES)
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(HEADER_BYTES + self._at)
        data = self._file.read(len(view))
        if self.key_name is None or not data:
            return 0
        view[: len(data)] = _stream(self._key, self._nonce, self._at).update(data)
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
