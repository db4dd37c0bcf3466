"""Certificates of a test's certificate authority."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Files:
    """The files of an authority, and of a server with a certificate that it signed."""

    ca: Path
    cert: Path
    key: Path


class Authority:
    """A certificate authority, with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {folder.name}")])
        limits = x509.BasicConstraints(ca=True, path_length=None)
        ca = _signed(self._name, self._name, self._key.public_key(), self._key, limits)
        (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str, stem: str = "", first: float = -1.0, last: float = 1.0) -> Files:
        """Create a certificate with these names or addresses, in files whose names start with `stem`.

        It is valid from `first` days after now (before, if negative) to `last` days after.
        """
        own = ec.generate_private_key(ec.SECP256R1())
        files = Files(self._folder / "ca.pem", self._folder / f"{stem}cert.pem", self._folder / f"{stem}key.pem")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        known = x509.SubjectAlternativeName([_name(name) for name in names])
        cert = _signed(subject, self._name, own.public_key(), self._key, known, (first, last))
        files.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        private, no_password = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files.key.write_bytes(own.private_bytes(serialization.Encoding.PEM, private, no_password))
        return files


def make(folder: Path, *names: str, first: float = -1.0, last: float = 1.0) -> Files:
    """Create an authority and a server certificate with these names or addresses, as Authority.issue does."""
    return Authority(folder).issue(*names, first=first, last=last)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
    days: tuple[float, float] = (-1.0, 1.0),
) -> x509.Certificate:
    now = datetime.now(UTC)
    # Python 3.13 requires two extensions of RFC 5280: the authority's key id in both certificates, and the key usage.
    is_authority = isinstance(extension, x509.BasicConstraints)
    use = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(extension, critical=is_authority)
        .add_extension(use, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
