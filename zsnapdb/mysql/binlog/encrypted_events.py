"""Binlogs whose events MariaDB encrypted, read as if they were plain: byte for byte, at the places of the server.

Sources: MariaDB manual, "Encrypting Binary Logs" and "File Key Management Encryption Plugin". Each event behind the
start-encryption event is encrypted by itself (sql/log_event.cc, decrypt_event): everything but its length, where its
first four bytes are kept; the vector is the nonce of the file and the place of the event. A last block that is not
whole is masked with the encrypted vector (mysys_ssl/my_crypt.cc, MyCTX_nopad). That this is right is tested with
servers (the campaign encrypted_binlogs, tests/system/test_binlog_tail.py).
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from typing_extensions import Buffer

from zsnapdb.mysql.binlog.events import HEADER, IGNORABLE, START_ENCRYPTION, StartEncryption

_LENGTH_AT = 9
_BLOCK = 16
_CHECKPOINT = 1 << 16
_KEPT_BYTES = 1 << 20
"""The longest event that is decrypted as one: the next read goes on in it."""


class Algorithm(StrEnum):
    """How events are encrypted: what file_key_management_encryption_algorithm says."""

    CBC = "aes_cbc"
    CTR = "aes_ctr"


@dataclass(frozen=True)
class _Place:
    """An event: where it begins, and how many bytes of it are there. `is_whole` False: the file ends in it."""

    begin: int
    there: int
    is_whole: bool = True


class DecryptedEvents(io.RawIOBase):
    """The plain bytes of a binlog with encrypted events. It may grow while it is read.

    The start-encryption event is marked as one to ignore, as when a server sends it: what follows is plain. Bytes of a
    last event that is not whole are zero where they cannot be decrypted.
    """

    def __init__(self, file: BinaryIO, key_name: str, key: bytes, algorithm: Algorithm, start: StartEncryption) -> None:
        super().__init__()
        self.name, self.key_name = file.name, key_name
        self._file, self._key, self._algorithm, self._start = file, algorithms.AES(key), algorithm, start
        self._at, self._owns = 0, True
        self._limit: int | None = None
        self._known = [start.end]
        """Places where events begin, at least one in each 64 KiB that was walked."""
        self._event = _Place(start.end, 0, is_whole=False)
        self._kept: tuple[int, bytes] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: 0}[whence]
        if whence == os.SEEK_END:
            base = self._size()
        self._at = max(0, base + offset)
        return self._at

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
        """Whether the key fits: the first event says where it ends. Before there is one, the binlog ends there."""
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
        """Return plain bytes at the present place, at most `count` and none behind the event that is there."""
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
        """Return the start-encryption event as a server sends it: all readers skip it."""
        event = bytearray(self._raw(self._start.start, self._start.end - self._start.start))
        if len(event) < self._start.end - self._start.start:
            return bytes(event)
        flags = struct.unpack_from("<H", event, HEADER.size - 2)[0] | IGNORABLE
        struct.pack_into("<H", event, HEADER.size - 2, flags)
        if len(event) > HEADER.size + START_ENCRYPTION.size:
            event[-4:] = struct.pack("<I", zlib.crc32(event[:-4]))
        return bytes(event)

    def _found(self, size: int) -> _Place:
        """Return the event at the present place; behind the last one nothing is there."""
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
        """Return the plain bytes `first` to `last` of the event."""
        if event.is_whole and event.there <= _KEPT_BYTES:
            if self._kept is None or self._kept[0] != event.begin:
                self._kept = (event.begin, self._shown(event, 0, event.there))
            return self._kept[1][first:last]
        return self._shown(event, first, last)

    def _shown(self, event: _Place, first: int, last: int) -> bytes:
        head = self._raw(event.begin, _LENGTH_AT + 4)
        if len(head) < _LENGTH_AT + 4:
            return bytes(last - first)
        # Encrypted are all bytes from the fifth on. The first block has what is shown as the first four bytes, too.
        block = max(0, first - 4) // _BLOCK * _BLOCK
        plain = self._opened(event, head, block, max(last - 4, 1))
        if block == 0:
            return (plain[5:9] + plain[:5] + head[_LENGTH_AT:] + plain[9:])[first:last]
        return plain[first - 4 - block : last - 4 - block]

    def _opened(self, event: _Place, head: bytes, block: int, last: int) -> bytes:
        """Return what was encrypted of the event, from `block` (a multiple of 16) to at least `last`.

        At least one block; what cannot be decrypted yet is zero.
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
        """End the reader, and leave its file open."""
        self._owns = False
        self.close()

    def close(self) -> None:
        if not self.closed and self._owns:
            self._file.close()
        super().close()
