"""Keys of encrypted binlogs, from the key file of MySQL's component_keyring_file or MariaDB's file_key_management.

Sources: refman 8.4, "The component_keyring_file Component"; MariaDB manual, "File Key Management Encryption Plugin".
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from zsnapdb.base import safe_open
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.patterns import printable

_SALTED, _BLOCK, _KEY_BYTES = b"Salted__", 16, 32
_LONGEST_PASSPHRASE = 256
"""MariaDB reads at most this many bytes of the passphrase file."""


def is_encrypted(content: bytes) -> bool:
    """Return whether a key file with this content needs a passphrase."""
    return content.startswith(_SALTED)


def decrypted(content: bytes, passphrase: bytes) -> str:
    """Return the decrypted text of a key file; empty if `passphrase` is wrong."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    if len(passphrase) > _LONGEST_PASSPHRASE or len(content) % _BLOCK:
        return ""
    salt, closed = content[len(_SALTED) : _BLOCK], content[_BLOCK:]
    made = digest = b""
    while len(made) < _KEY_BYTES + _BLOCK:
        digest = hashlib.sha1(digest + passphrase + salt, usedforsecurity=False).digest()
        made += digest
    key, vector = made[:_KEY_BYTES], made[_KEY_BYTES : _KEY_BYTES + _BLOCK]
    opening, padding = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor(), PKCS7(8 * _BLOCK).unpadder()
    try:
        return (padding.update(opening.update(closed)) + padding.finalize()).decode()
    except ValueError:
        return ""


_MOST_KEYS = 10_000


class _StoredKey(BaseModel):
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True, defer_build=True)

    data_id: str = Field(max_length=256)
    data: str = Field(max_length=8192, repr=False)


class _KeyringFile(BaseModel):
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True, defer_build=True)

    elements: tuple[_StoredKey, ...] = Field(max_length=_MOST_KEYS, repr=False)


@dataclass(frozen=True)
class BinlogKeys:
    """Keys of a server's encrypted binlogs, from its keyring files and from earlier reads of these files.

    A rotation of the master key removes the old key from the keyring, but binlogs in a snapshot may need the old key.
    """

    files: tuple[Path, ...] = ()
    known: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def remembered(self) -> BinlogKeys:
        """Return a copy that also contains all keys that are in the keyring now."""
        return BinlogKeys(self.files, {**self.known, **dict(self._stored())})

    def key(self, name: str) -> bytes | None:
        """Return the key with this name; None if neither the keyring nor `known` contains the key."""
        return next((key for known, key in self._stored() if known == name), self.known.get(name))

    def _stored(self) -> Iterator[tuple[str, bytes]]:
        contents = [content for file in self.files if (content := _content(file)) is not None]
        for content in contents:
            if is_encrypted(content):
                # Another file of the keyring contains the passphrase.
                for other in contents:
                    yield from _in_lines(decrypted(content, other.rstrip(b"\r\n")))
            else:
                text = content.decode(errors="surrogateescape")
                yield from _in_component(text) if text.lstrip().startswith("{") else _in_lines(text)


def _content(file: Path) -> bytes | None:
    """Return the content of the file. Return None if it cannot be read; the caller then reports the missing key."""
    try:
        return safe_open.read_bytes(file)
    except (OSError, safe_open.UnsafeFileError):
        return None


def _in_component(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield the keys in a file of component_keyring_file. Yield no keys if the file has another format."""
    with contextlib.suppress(ValidationError, ValueError):
        keyring = _KeyringFile.model_validate_json(text.encode(errors="replace"))
        yield from ((stored.data_id, bytes.fromhex(stored.data)) for stored in keyring.elements)


def _in_lines(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield the keys in a file of file_key_management. Each line has the number and the hexadecimal digits of a key."""
    for line in text.splitlines():
        number, separator, digits = line.partition(";")
        with contextlib.suppress(ValueError):
            if separator and number.strip().isdecimal():
                yield file_key(int(number)), bytes.fromhex(digits.strip())


NO_KEYS = BinlogKeys()


def file_key(number: int) -> str:
    """Return zsnapdb's name for a key of file_key_management."""
    return f"file_key_management {number}"


def missing_key(name: str, what: str, files: Iterable[Path]) -> PreflightError:
    """Return the error for a missing key. The error lists the files that were searched."""
    where = ", ".join(printable(str(known)) for known in files) or "no keyring file is known"
    return PreflightError(
        f"{what} is encrypted with the key {printable(name)!r}, which cannot be read ({where})",
        hint="restore the former key to the file of component_keyring_file or file_key_management on this host. A"
        " passphrase is read from file_key_management_filekey=FILE:PATH. With another keyring, set binlog_encryption"
        " or encrypt_binlog to OFF",
    )
