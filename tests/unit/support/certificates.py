"""Certificates of an authority that a test makes."""

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
    """The files of an authority and of the server whose certificate it signed."""

    ca: Path
    cert: Path
    key: Path


def make(folder: Path, *names: str, first: float = -1.0, last: float = 1.0) -> Files:
    """Make an authority, and the certificate of a server with these names or addresses.

    It is valid from `first` days after now (before, if negative) to `last` days after.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    files = Files(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {folder.name}")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    ca = _signed(issuer, issuer, authority.public_key(), authority, x509.BasicConstraints(ca=True, path_length=None))
    known = x509.SubjectAlternativeName([_name(name) for name in names])
    cert = _signed(subject, issuer, own.public_key(), authority, known, (first, last))
    for file, certificate in ((files.ca, ca), (files.cert, cert)):
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


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
    # Python 3.13 asks for what RFC 5280 demands of certificates: the authority's key in both, and the use of its key.
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
