"""MariaDB's key file where it is encrypted itself, and the passphrase that opens it.

It is as `openssl enc -aes-256-cbc -md sha1` writes it (MariaDB manual, "File Key Management Encryption Plugin"). That
this is right is tested with the server (tests/system/test_encrypted_binlogs.py).
"""

from __future__ import annotations

import hashlib

_SALTED, _BLOCK, _KEY_BYTES = b"Salted__", 16, 32
_LONGEST_PASSPHRASE = 256
"""MariaDB reads no more of the file with the passphrase."""


def is_encrypted(content: bytes) -> bool:
    """Return whether a key file with this content needs a passphrase."""
    return content.startswith(_SALTED)


def decrypted(content: bytes, passphrase: bytes) -> str:
    """Return the text of a key file that this passphrase opens; nothing if it is another one."""
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
