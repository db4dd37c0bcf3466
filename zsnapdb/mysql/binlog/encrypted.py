"""Opens binlogs. Those that MySQL encrypted are read as if they were plain: byte for byte what the server logged.

Sources: refman 8.4, "Encrypting Binary Log Files and Relay Log Files" (a file password for each file, AES-256-CTR, in a
header of 512 bytes that is encrypted with a key of the keyring) and "The component_keyring_file Component". The header
and the derivation of the key are as sql/rpl_log_encryption.cc and sql/stream_cipher.cc write them; that they are right
is tested with a server (tests/system/test_encrypted_binlogs.py). Positions of the server count from behind the header.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Buffer

from zsnapdb.base import server_files
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.patterns import printable
from zsnapdb.mysql.binlog.events import ENCRYPTED_MAGIC, MAGIC

HEADER_BYTES = 512
_VERSION = 1
_KEY_NAME, _PASSWORD, _PASSWORD_IV = 1, 2, 3
_FIXED = {_PASSWORD: 32, _PASSWORD_IV: 16}
_BLOCK = 16
_MOST_KEYS = 10_000
_ATTEMPTS = 3
"""The server writes the header anew when its master key is rotated: who reads meanwhile reads it again."""


class _StoredKey(BaseModel):
    """A key in the file of component_keyring_file."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    data_id: str = Field(max_length=256)
    data: str = Field(max_length=8192, repr=False)


class _KeyringFile(BaseModel):
    """The file of component_keyring_file."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    elements: tuple[_StoredKey, ...] = Field(max_length=_MOST_KEYS, repr=False)


@dataclass(frozen=True)
class BinlogKeys:
    """The keys of a server's encrypted binlogs: the files of its keyring, and keys that were read from them before.

    A rotation of the master key removes the old one from the keyring, while a snapshot still has binlogs that need it.
    """

    files: tuple[Path, ...] = ()
    known: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def remembered(self) -> BinlogKeys:
        """Return the same keys, with all that are in the keyring now."""
        return BinlogKeys(self.files, {**self.known, **dict(self._stored())})

    def key(self, name: str) -> bytes | None:
        """Return the key of that name; None if neither the keyring nor what was read before has it."""
        return next((key for known, key in self._stored() if known == name), self.known.get(name))

    def _stored(self) -> Iterator[tuple[str, bytes]]:
        for file in self.files:
            try:
                keyring = _KeyringFile.model_validate_json(server_files.read_text(file).encode(errors="replace"))
                yield from ((stored.data_id, bytes.fromhex(stored.data)) for stored in keyring.elements)
            except (OSError, server_files.UnsafeFileError, ValidationError, ValueError):
                # It is no file of component_keyring_file, or not here: the key that is missing is named.
                continue


NO_KEYS = BinlogKeys()


def open_binlog(path: Path, keys: BinlogKeys = NO_KEYS) -> BinaryIO:
    """Return the open binlog, decrypted if it is encrypted. A file that has only a part of its header is empty.

    PreflightError if the keyring does not have its key. UnsafeFileError as for `server_files.open_to_read`.
    """
    file = server_files.open_to_read(path)
    try:
        if file.read(len(ENCRYPTED_MAGIC)) != ENCRYPTED_MAGIC:
            file.seek(0)
            return file
        return _decrypting(file, path, keys)
    except BaseException:
        file.close()
        raise


def key_of(file: BinaryIO) -> str | None:
    """Return the name of the key that the open binlog is encrypted with; None if it is not encrypted."""
    raw = getattr(file, "raw", None)
    return raw.key_name if isinstance(raw, _DecryptedBinlog) else None


def missing_key(name: str, what: str, files: Iterable[Path]) -> PreflightError:
    """Return the error that says which key cannot be read, and where it was looked for."""
    where = ", ".join(str(known) for known in files) or "no keyring file is known"
    return PreflightError(
        f"{what} is encrypted with the key {printable(name)!r}, which cannot be read ({where})",
        hint="zsnapdb reads the keys of component_keyring_file on this host: bring the keyring of then back, or with"
        " another keyring set binlog_encryption=OFF",
    )


def _decrypting(file: BinaryIO, path: Path, keys: BinlogKeys) -> BinaryIO:
    for _ in range(_ATTEMPTS):
        file.seek(0)
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return cast(BinaryIO, io.BufferedReader(_DecryptedBinlog(file, None, b"", b"")))
        fields = _fields(header, path)
        name = fields[_KEY_NAME].decode(errors="replace")
        key = keys.key(name)
        if key is None or len(key) != 32:
            continue
        file_key, nonce = _file_key(key, fields)
        first = file.read(len(MAGIC))
        if _stream(file_key, nonce, 0).update(first) in (MAGIC, b""):
            return cast(BinaryIO, io.BufferedReader(_DecryptedBinlog(file, name, file_key, nonce)))
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
    if set(fields) < {_KEY_NAME, *_FIXED} or any(len(fields[kind]) != size for kind, size in _FIXED.items()):
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


class _DecryptedBinlog(io.RawIOBase):
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
