"""The certificate and the key with which the web process speaks HTTPS, checked before anything listens."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
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
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(made)
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Let new connections of the context use what the files hold now. ConfigError changes nothing of it."""
        self.context()
        self._load(context)

    def _load(self, context: ssl.SSLContext) -> None:
        self._refuse_wrong_time()
        secret_in(self.key, "the key", "the account of `zsnapdb serve` must be able to read it")
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._no_password)
        except ssl.SSLError as error:
            what = f"the certificate {self.certificate} with the key {self.key}: {error.reason or error}"
            fits = error.reason not in _MISMATCHES
            raise ConfigError(
                what if fits else f"the key {self.key} is not that of the certificate {self.certificate}",
                hint=f"name a file with a key (PEM); in the other {_CHAIN}"
                if fits
                else "name the key of the certificate",
            ) from error
        except OSError as error:
            raise ConfigError(f"reading {self.certificate} and {self.key}: {error.strerror}", hint=_CHAIN) from error

    def _refuse_wrong_time(self) -> None:
        text = read_text(self.certificate, "the certificate", _CHAIN)
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

    def _no_password(self) -> str:
        """Say that nobody is asked for the password of a key."""
        raise ConfigError(
            f"the key {self.key} is encrypted", hint="name one that is not, readable by its account alone"
        )
