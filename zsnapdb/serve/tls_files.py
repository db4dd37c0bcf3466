"""The certificate and the key with which the web process speaks HTTPS, checked before anything listens."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.text_files import read_text, secret_in

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""What OpenSSL says of a key that is not that of the certificate; the last of a key of another type."""
_CHAIN = "it must hold the certificate and then the others of its chain (PEM)"


@dataclass(frozen=True)
class TlsFiles:
    """A file with a certificate and its chain, and one with its private key."""

    certificate: Path
    key: Path
    now: Callable[[], datetime]

    def context(self) -> ssl.SSLContext:
        """Return what speaks TLS 1.2 or newer with these files. ConfigError if they cannot be used now."""
        return self._read().context()

    def load(self, context: ssl.SSLContext) -> None:
        """Let new connections of the context use what the files hold now. ConfigError changes nothing of it.

        What was checked is what is used: each file is read once, whatever is written into it meanwhile.
        """
        pair = self._read()
        pair.context()
        pair.load(context)

    def _read(self) -> _TlsPair:
        """Return what both files hold. ConfigError if they cannot be read, or the certificate is of another time."""
        certificate = read_text(self.certificate, "the certificate", _CHAIN)
        self._refuse_wrong_time(certificate)
        key = secret_in(self.key, "the key", "the account of `zsnapdb serve` must be able to read it")
        return _TlsPair(self, certificate.encode(), key)

    def _refuse_wrong_time(self, text: str) -> None:
        try:
            first = x509.load_pem_x509_certificates(text.encode())[0]
        except ValueError as error:
            raise ConfigError(f"{self.certificate} has no certificate", hint=_CHAIN) from error
        now = self.now()
        if first.not_valid_after_utc <= now:
            raise ConfigError(
                f"the certificate {self.certificate} expired at {first.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC",
                hint="renew it",
            )
        if first.not_valid_before_utc > now:
            raise ConfigError(
                f"the certificate {self.certificate} is valid from {first.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC",
                hint="is the clock of this host right?",
            )


@dataclass(frozen=True)
class _TlsPair:
    """A certificate and a key as they were read together."""

    files: TlsFiles
    certificate: bytes
    key: bytes = field(repr=False)

    def context(self) -> ssl.SSLContext:
        """Return what speaks TLS 1.2 or newer with them. ConfigError if they cannot be used."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(made)
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Let the context use them. ConfigError, after which it may have one of both."""
        names = f"the certificate {self.files.certificate} with the key {self.files.key}"
        try:
            # OpenSSL takes names of files alone: these are in memory, and nobody else can open them.
            with _in_memory(self.certificate) as certificate, _in_memory(self.key) as key:
                context.load_cert_chain(certificate, key, password=self._no_password)
        except ssl.SSLError as error:
            if error.reason in _MISMATCHES:
                what = f"the key {self.files.key} is not that of the certificate {self.files.certificate}"
                raise ConfigError(what, hint="name the key of the certificate") from error
            hint = f"name a file with a key (PEM); in the other {_CHAIN}"
            raise ConfigError(f"{names}: {error.reason or error}", hint=hint) from error
        except OSError as error:
            raise ConfigError(f"reading {names}: {error.strerror}", hint=_CHAIN) from error

    def _no_password(self) -> str:
        """Say that nobody is asked for the password of a key."""
        raise ConfigError(
            f"the key {self.files.key} is encrypted", hint="name one that is not, readable by its account alone"
        )


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[Path]:
    """Yield a file in memory with that content, by a name that is good for this process."""
    with os.fdopen(os.memfd_create("zsnapdb-tls", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")
