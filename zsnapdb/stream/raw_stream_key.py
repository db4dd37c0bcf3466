"""The wrapped key in the first record of a raw stream, and a check whether the user's key opens the received dataset.

Sources: OpenZFS include/sys/dsl_crypt.h and module/os/linux/zfs/zio_crypt.c (zio_crypt_key_wrap: the keys of a dataset
with their GUID, suite and version as associated data), lib/libzfs/libzfs_crypto.c (conversion of the key's text to the
key). Tests with streams of `zfs send -w` confirm the parsing.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESCCM, AESGCM

from zsnapdb.stream import resume_stream
from zsnapdb.stream.send_stream_checks import MOST_KEY_BYTES, RECORD_BYTES, parse_begin

FIRST_BYTES = RECORD_BYTES + MOST_KEY_BYTES
"""Number of bytes at the start of a stream that contain the whole first record."""
_SUITES = {3: 16, 4: 24, 5: 32, 6: 16, 7: 24, 8: 32}
"""Key lengths in bytes by the number of the dataset's cipher (enum zio_encrypt): AES-CCM, then AES-GCM."""
_FIRST_GCM = 6
_RAW, _HEX, _PASSPHRASE = 1, 2, 3
_WRAPPING_BYTES = 32
_MOST_ITERATIONS = 20_000_000
"""Maximum number of iterations.

`zfs create` uses 350,000 iterations, which take 0.1 s. A number above the maximum is treated as an attack.
"""


@dataclass(frozen=True)
class WrappedKey:
    """The keys of a dataset, wrapped by the user's key.

    `keyformat` is the number of the format: raw, hex or passphrase.

    `sealed` contains the keys and the cipher's tag. `associated` is the data that is authenticated together with the
    keys.
    """

    suite: int
    keyformat: int
    iterations: int
    salt: int
    nonce: bytes
    sealed: bytes = field(repr=False)
    associated: bytes = field(repr=False)

    def is_opened_by(self, text: bytes) -> bool:
        """Whether the user's key unwraps the keys. `text` is the whole content of the key file."""
        key = self._wrapping_key(text)
        if key is None:
            return False
        cipher = AESGCM(key) if self.suite >= _FIRST_GCM else AESCCM(key)
        try:
            cipher.decrypt(self.nonce, self.sealed, self.associated)
        except InvalidTag:
            return False
        return True

    def _wrapping_key(self, text: bytes) -> bytes | None:
        """Return the key for the text (zfs-load-key(8)); None if the text is not a key in this format."""
        if self.keyformat == _RAW:
            return text if len(text) == _WRAPPING_BYTES else None
        line = text.removesuffix(b"\n")
        if self.keyformat == _HEX:
            return bytes.fromhex(line.decode()) if re.fullmatch(rb"[0-9a-fA-F]{64}", line) else None
        phrase = text.partition(b"\n")[0]
        return hashlib.pbkdf2_hmac("sha1", phrase, struct.pack("<Q", self.salt), self.iterations, _WRAPPING_BYTES)


def wrapped_key(first: bytes) -> WrappedKey | None:
    """Return the wrapped key of a raw stream that starts with the given bytes; None if its format is unknown.

    Raises DamagedError if the bytes do not start with a BEGIN record.
    """
    begin = parse_begin(first)
    payload = first[RECORD_BYTES : RECORD_BYTES + begin.payload_size]
    try:
        keys = resume_stream.read_nvlist(payload)["crypt_keydata"]
        return _of(keys) if isinstance(keys, Mapping) else None
    except (KeyError, struct.error, ValueError):
        return None


def _of(keys: Mapping[str, resume_stream.Value]) -> WrappedKey:
    """Return the wrapped key in an nvlist.

    Raises KeyError if a value is missing, and ValueError if a value is invalid.
    """

    def number(name: str) -> int:
        value = keys[name]
        if not isinstance(value, int):
            raise ValueError(f"{name} is not a number")
        return value

    def octets(name: str, count: int) -> bytes:
        value = keys[name]
        if not isinstance(value, bytes) or len(value) < count:
            raise ValueError(f"{name} does not have {count} bytes")
        return value[:count]

    suite, version = number("DSL_CRYPTO_SUITE"), number("DSL_CRYPTO_VERSION")
    keyformat, iterations = number("keyformat"), number("pbkdf2iters")
    if version != 1 or keyformat not in (_RAW, _HEX, _PASSPHRASE) or not 0 <= iterations <= _MOST_ITERATIONS:
        raise ValueError("another version, format or number of iterations")
    if keyformat == _PASSPHRASE and iterations == 0:
        raise ValueError("a passphrase without iterations")
    sealed = (
        octets("DSL_CRYPTO_MASTER_KEY_1", _SUITES[suite]),
        octets("DSL_CRYPTO_HMAC_KEY_1", 64),
        octets("DSL_CRYPTO_MAC", 16),
    )
    associated = struct.pack("<QQQ", number("DSL_CRYPTO_GUID"), suite, version)
    nonce = octets("DSL_CRYPTO_IV", 12)
    return WrappedKey(suite, keyformat, iterations, number("pbkdf2salt"), nonce, b"".join(sealed), associated)
