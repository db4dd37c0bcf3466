"""TLS protection of TCP connections to a server, for zsnapdb's sessions, clients that it starts, and replicas."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.patterns import is_loopback
from zsnapdb.planning.sql_quoting import option_value

if TYPE_CHECKING:
    import ssl


class TlsMode(StrEnum):
    """How connections use TLS.

    REQUIRED means TLS with a verified certificate. PREFERRED means TLS if the server offers it. OFF means no TLS.

    PREFERRED verifies the certificate only if a CA is configured. Without a CA, PREFERRED protects against
    eavesdroppers, but not against an impostor.
    """

    REQUIRED = "required"
    PREFERRED = "preferred"
    OFF = "off"


@dataclass(frozen=True)
class Tls:
    """The TLS protection of a TCP connection. A connection over a Unix socket needs no TLS.

    The default mode None means PREFERRED for the loopback interface and REQUIRED otherwise. `ca` is the file with the
    authorities that may sign the server's certificate; None means this host's authorities. If `checks_name` is set, the
    certificate must contain the name of the host. If `asks_for_public_key` is set, a password may be encrypted without
    TLS, with a key that the answering server sends.
    """

    mode: TlsMode | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    checks_name: bool = True
    asks_for_public_key: bool = False

    def mode_to(self, host: str) -> TlsMode:
        if self.mode is not None:
            return self.mode
        return TlsMode.PREFERRED if is_loopback(host) else TlsMode.REQUIRED

    def verifies(self, host: str) -> bool:
        """Return whether the certificate of the server on this host is verified."""
        mode = self.mode_to(host)
        return mode is TlsMode.REQUIRED or (mode is TlsMode.PREFERRED and self.ca is not None)

    def may_send_to(self, host: str) -> bool:
        """Return whether a password may be sent to the host in readable form if the connection has no TLS."""
        return is_loopback(host) or self.asks_for_public_key


NO_SETTINGS = Tls()
"""The TLS protection of a connection if no TLS settings are configured."""


def context(tls: Tls, host: str) -> ssl.SSLContext | None:
    """Return the TLS context of a connection to the host; None if the connection has no TLS.

    Raises ConfigError if a configured file cannot be used.
    """
    import ssl

    if tls.mode_to(host) is TlsMode.OFF:
        return None
    try:
        made = ssl.create_default_context(cafile=str(tls.ca) if tls.ca else None)
        # Certificates that servers generate lack extensions that the strict check of Python 3.13 requires.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        made.check_hostname = tls.verifies(host) and tls.checks_name
        made.verify_mode = ssl.CERT_REQUIRED if tls.verifies(host) else ssl.CERT_NONE
        if tls.cert is not None:
            made.load_cert_chain(str(tls.cert), str(tls.key) if tls.key else None)
    except OSError as error:
        files = ", ".join(str(file) for file in (tls.ca, tls.cert, tls.key) if file)
        raise ConfigError(
            f"the certificates {files} cannot be used: {error}", hint="check tls_ca, tls_cert and tls_key"
        ) from error
    return made


def client_options(tls: Tls, host: str) -> tuple[str, ...]:
    """Return the option file lines that make a client program protect its connection to the host as in `tls`.

    MySQL clients have ssl-mode (refman 8.4, "Command Options for Encrypted Connections"). MariaDB clients have ssl and
    ssl-verify-server-cert, which always checks the name (MariaDB manual, "mariadb Command-Line Client"). `loose` makes
    each client ignore the options of the other family.
    """
    mode = tls.mode_to(host)
    if mode is TlsMode.OFF:
        return ("loose_ssl_mode=DISABLED", "loose_skip_ssl")
    verified = "VERIFY_IDENTITY" if tls.checks_name else "VERIFY_CA"
    ours = verified if tls.verifies(host) else "PREFERRED"
    lines = [f"loose_ssl_mode={ours}"]
    lines += ["loose_ssl=1", "loose_ssl_verify_server_cert=1"] if tls.verifies(host) else []
    lines += ["loose_skip_ssl_verify_server_cert"] if not tls.verifies(host) else []
    authorities = (tls.ca or own_authorities()) if tls.verifies(host) else None
    files = {"ssl_ca": authorities, "ssl_cert": tls.cert, "ssl_key": tls.key}
    lines += [f"{name}={option_value(str(file))}" for name, file in files.items() if file is not None]
    return (*lines, "loose_get_server_public_key=1") if tls.asks_for_public_key else tuple(lines)


def own_authorities() -> Path | None:
    """Return the file with the certificate authorities that this host trusts."""
    import ssl

    file = ssl.get_default_verify_paths().cafile
    return Path(file) if file else None
