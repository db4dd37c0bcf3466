"""Reader of binlogs that MariaDB or MySQL encrypted.

The reader returns the plain bytes, at the same offsets as on the server.

Sources: MariaDB manual, "Encrypting Binary Logs" and "File Key Management Encryption Plugin". MariaDB encrypts each
event after the start-encryption event separately (sql/log_event.cc, decrypt_event). The length field of the event is
not encrypted. Before the encryption, the first four bytes of the event are moved to the place of the length. The
initialisation vector consists of the file's nonce and the event's offset. An incomplete last block is masked with the
encrypted vector (mysys_ssl/my_crypt.cc, MyCTX_nopad). Tests with real servers check these facts (the campaign
encrypted_binlogs, tests/system/test_binlog_tail.py).
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from typing_extensions import Buffer

from zsnapdb.base.errors import PreflightError
from zsnapdb.mysql.binlog.binlog_keys import BinlogKeys, missing_key
from zsnapdb.mysql.binlog.events import ENCRYPTED_MAGIC, HEADER, IGNORABLE, MAGIC, START_ENCRYPTION, StartEncryption

_LENGTH_AT = 9
_BLOCK = 16
_CHECKPOINT = 1 << 16
_KEPT_BYTES = 1 << 20
"""Maximum length of an event that is decrypted completely and cached. The next read usually continues in the same
event.
"""


class Algorithm(StrEnum):
    """The algorithm that encrypts events, as MariaDB names it in file_key_management_encryption_algorithm."""

    CBC = "aes_cbc"
    CTR = "aes_ctr"


@dataclass(frozen=True)
class _Place:
    """The start of an event, and the number of its bytes that the file contains.

    `is_whole` is False if the file ends inside the event.
    """

    begin: int
    there: int
    is_whole: bool = True


class _PlainBytes(io.RawIOBase):
    """Decrypted bytes of an encrypted file, which may grow while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.name, self._file = file.name, file
        self._at, self._owns = 0, True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = self._size() if whence == os.SEEK_END else {os.SEEK_SET: 0, os.SEEK_CUR: self._at}[whence]
        self._at = max(0, base + offset)
        return self._at

    @abstractmethod
    def _size(self) -> int:
        """Return the number of decrypted bytes."""

    def close(self) -> None:
        if not self.closed and self._owns:
            self._file.close()
        super().close()


class DecryptedEvents(_PlainBytes):
    """Decrypted bytes of a binlog with encrypted events. The file may grow while it is read.

    The start-encryption event is marked as ignorable, because the following events are returned as plain bytes. A
    server does the same when it sends a binlog. If bytes of an incomplete last event cannot be decrypted, they are
    zero.
    """

    def __init__(self, file: BinaryIO, key_name: str, key: bytes, algorithm: Algorithm, start: StartEncryption) -> None:
        super().__init__(file)
        self.key_name = key_name
        self._key, self._algorithm, self._start = algorithms.AES(key), algorithm, start
        self._limit: int | None = None
        self._known = [start.end]
        """Start offsets of known events, at least one per 64 KiB of the walked part."""
        self._event = _Place(start.end, 0, is_whole=False)
        self._kept: tuple[int, bytes] | None = None

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        done, size = 0, self._size()
        while done < len(view):
            piece = self._piece(len(view) - done, size)
            if not piece:
                break
            view[done : done + len(piece)] = piece
            done += len(piece)
            self._at += len(piece)
        return done

    def is_fitting(self) -> bool:
        """Return whether the key decrypts the binlog.

        With the correct key, the decrypted first event contains the correct end position. If the binlog has no events,
        every key is accepted, because the binlog is treated as if it ended before the first event.
        """
        if self._size() < self._start.end + 4 + _BLOCK:
            self._limit = self._start.end
            return True
        self.seek(self._start.end)
        head = (self.read(HEADER.size) or b"").ljust(HEADER.size, b"\0")
        _, _, _, length, following, _ = HEADER.unpack(head)
        return int(following) == self._start.end + int(length)

    def _size(self) -> int:
        size = self._file.seek(0, os.SEEK_END)
        return size if self._limit is None else min(size, self._limit)

    def _piece(self, count: int, size: int) -> bytes:
        """Return at most `count` plain bytes from the current offset up to the end of the current event."""
        start = self._start
        if self._at < start.start:
            return self._raw(self._at, min(count, start.start - self._at))
        if self._at < start.end:
            return self._ignorable()[self._at - start.start :][:count]
        event = self._found(size)
        inside = self._at - event.begin
        return self._decrypted(event, inside, min(event.there, inside + count)) if event.there else b""

    def _raw(self, at: int, count: int) -> bytes:
        self._file.seek(at)
        return self._file.read(count)

    def _ignorable(self) -> bytes:
        """Return the start-encryption event as a server sends it, so that all readers skip it."""
        event = bytearray(self._raw(self._start.start, self._start.end - self._start.start))
        if len(event) < self._start.end - self._start.start:
            return bytes(event)
        flags = struct.unpack_from("<H", event, HEADER.size - 2)[0] | IGNORABLE
        struct.pack_into("<H", event, HEADER.size - 2, flags)
        if len(event) > HEADER.size + START_ENCRYPTION.size:
            event[-4:] = struct.pack("<I", zlib.crc32(event[:-4]))
        return bytes(event)

    def _found(self, size: int) -> _Place:
        """Return the event at the current offset. After the last event, return an empty event."""
        event, near = self._event, self._known[bisect_right(self._known, self._at) - 1]
        if not near <= event.begin <= self._at:
            event = self._place(near, size)
        elif not event.is_whole:
            event = self._place(event.begin, size)
        while event.there and self._at >= event.begin + event.there:
            event = self._place(event.begin + event.there, size)
            if event.begin - self._known[-1] >= _CHECKPOINT:
                self._known.append(event.begin)
        self._event = event
        return event

    def _place(self, begin: int, size: int) -> _Place:
        head, rest = self._raw(begin, _LENGTH_AT + 4), max(0, size - begin)
        if len(head) < _LENGTH_AT + 4:
            return _Place(begin, rest, is_whole=False)
        length = int(struct.unpack_from("<I", head, _LENGTH_AT)[0])
        return _Place(begin, rest, is_whole=False) if not HEADER.size <= length <= rest else _Place(begin, length)

    def _decrypted(self, event: _Place, first: int, last: int) -> bytes:
        if event.is_whole and event.there <= _KEPT_BYTES:
            if self._kept is None or self._kept[0] != event.begin:
                self._kept = (event.begin, self._shown(event, 0, event.there))
            return self._kept[1][first:last]
        return self._shown(event, first, last)

    def _shown(self, event: _Place, first: int, last: int) -> bytes:
        head = self._raw(event.begin, _LENGTH_AT + 4)
        if len(head) < _LENGTH_AT + 4:
            return bytes(last - first)
        # All bytes from the fifth on are encrypted. The first block also contains the first four plain bytes.
        block = max(0, first - 4) // _BLOCK * _BLOCK
        plain = self._opened(event, head, block, max(last - 4, 1))
        if block == 0:
            return (plain[5:9] + plain[:5] + head[_LENGTH_AT:] + plain[9:])[first:last]
        return plain[first - 4 - block : last - 4 - block]

    def _opened(self, event: _Place, head: bytes, block: int, last: int) -> bytes:
        """Decrypt the event's encrypted part from `block` (a multiple of 16) to at least `last`.

        The result contains at least one block. Bytes that cannot be decrypted yet are zero.
        """
        until = min(event.there - 4, max(-(-last // _BLOCK) * _BLOCK, _BLOCK))
        before = max(0, block - _BLOCK)
        data = bytearray(self._raw(event.begin + 4 + before, until - before))
        if before == 0:
            data[5:9] = head[:4]
        vector = self._start.nonce + struct.pack("<I", event.begin & 0xFFFFFFFF)
        if self._algorithm is Algorithm.CTR:
            counter = (int.from_bytes(vector, "big") + before // _BLOCK) % (1 << 128)
            stream = Cipher(self._key, modes.CTR(counter.to_bytes(_BLOCK, "big"))).decryptor()
            plain = stream.update(bytes(data))
        else:
            whole = len(data) // _BLOCK * _BLOCK
            plain = Cipher(self._key, modes.CBC(vector)).decryptor().update(bytes(data[:whole]))
            if whole < len(data) and event.is_whole:
                mask = Cipher(self._key, modes.CBC(bytes(_BLOCK))).encryptor().update(vector)
                plain += bytes(one ^ other for one, other in zip(data[whole:], mask, strict=False))
            plain = plain.ljust(len(data), b"\0")
        return plain[block - before :].ljust(_BLOCK, b"\0")

    def give_back(self) -> None:
        """Detach the reader from its file without closing the file."""
        self._owns = False
        self.close()


HEADER_BYTES = 512
_VERSION = 1
_KEY_NAME, _PASSWORD, _PASSWORD_IV = 1, 2, 3
_FIXED = {_PASSWORD: 32, _PASSWORD_IV: 16}

_ATTEMPTS = 3
"""Number of attempts to read a header. A rotation of the master key rewrites the header while it is read."""


def decrypted_file(file: BinaryIO, path: Path, keys: BinlogKeys) -> DecryptedFile:
    """Return the decrypted bytes of an open binlog that MySQL encrypted. Raise PreflightError if the key is missing.

    If the file's header is incomplete, the result has no bytes.
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
        opening = Cipher(algorithms.AES(key), modes.CBC(fields[_PASSWORD_IV])).decryptor()
        derived = hashlib.sha512(opening.update(fields[_PASSWORD]) + opening.finalize()).digest()
        file_key, nonce = derived[:32], derived[32:40]
        first = file.read(len(MAGIC))
        if _stream(file_key, nonce, 0).update(first) in (MAGIC, b""):
            return DecryptedFile(file, name, file_key, nonce)
    raise missing_key(name, f"binlog {path.name}", keys.files)


def _fields(header: bytes, path: Path) -> dict[int, bytes]:
    """Return the fields of the header.

    Each field consists of a type byte, the length if the type has no fixed length, and the value.
    """
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
            f"binlog {path.name} is encrypted in an unknown form",
            hint="set binlog_encryption=OFF, or use a release of zsnapdb that knows this server",
        )
    return fields


def _stream(key: bytes, nonce: bytes, at: int) -> CipherContext:
    """Return the cipher for the offset `at` after the end of the file's header."""
    block, inside = divmod(at, _BLOCK)
    stream = Cipher(algorithms.AES(key), modes.CTR(nonce + block.to_bytes(_BLOCK - len(nonce), "big"))).decryptor()
    stream.update(bytes(inside))
    return stream


class DecryptedFile(_PlainBytes):
    """Decrypted bytes of an encrypted binlog. The file may grow while it is read.

    If the header is incomplete, `key_name` is None and the file has no decrypted bytes yet.
    """

    def __init__(self, file: BinaryIO, key_name: str | None, key: bytes, nonce: bytes) -> None:
        super().__init__(file)
        self.key_name = key_name
        self._key, self._nonce = key, nonce

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(HEADER_BYTES + self._at)
        data = self._file.read(len(view))
        if self.key_name is None or not data:
            return 0
        view[: len(data)] = _stream(self._key, self._nonce, self._at).update(data)
        self._at += len(data)
        return len(data)

    def _size(self) -> int:
        return max(0, self._file.seek(0, os.SEEK_END) - HEADER_BYTES)
