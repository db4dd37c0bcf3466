"""`zsnapdb serve` with a certificate: what is refused before it listens, and HTTPS as a client sees it."""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.unit.support import certificates
from tests.unit.support.certificates import Files
from tests.unit.support.command_line import ENVIRONMENT, zsnapdb
from zsnapdb.base.errors import ConfigError
from zsnapdb.serve.web_server import TlsFiles, _TlsPair


def private(files: Files) -> Files:
    files.key.chmod(0o600)
    return files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return private(certificates.make(tmp_path / "good", "localhost"))


def refused(certificate: Path, key: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        TlsFiles(certificate, key, lambda: datetime.now(UTC)).context()
    assert caught.value.hint
    return caught.value.message


def test_files_that_cannot_be_used_are_told_before_anything_listens(files: Files, tmp_path: Path) -> None:
    old = private(certificates.make(tmp_path / "old", "localhost", first=-3, last=-1))
    early = private(certificates.make(tmp_path / "early", "localhost", first=1, last=3))
    assert "expired at" in refused(old.cert, old.key)
    assert "is valid from" in refused(early.cert, early.key)
    assert "is not that of the certificate" in refused(files.cert, old.key)
    assert "has no certificate" in refused(files.key, files.key)
    assert "reading the certificate" in refused(tmp_path / "none", files.key)
    assert "reading the key" in refused(files.cert, tmp_path / "none")
    assert str(files.cert) in refused(files.cert, private(Files(files.ca, files.ca, files.cert)).key)


def test_a_key_of_another_type_or_with_a_password_is_refused(files: Files, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    forms: dict[str, serialization.KeySerializationEncryption] = {
        "is not that of the certificate": serialization.NoEncryption(),
        "is encrypted": serialization.BestAvailableEncryption(b"secret"),
    }
    for what, form in forms.items():
        file = tmp_path / "key"
        file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form))
        file.chmod(0o600)
        assert what in refused(files.cert, file)


def test_a_key_that_others_can_read_is_refused(files: Files) -> None:
    files.key.chmod(0o644)
    assert "other accounts may read" in refused(files.cert, files.key)


def test_beyond_loopback_a_certificate_is_needed_and_each_file_needs_the_other(files: Files) -> None:
    for words, what, code in (
        (("--address=0.0.0.0",), "is not a loopback address", 3),
        (("--address=192.0.2.1",), "is not a loopback address", 3),
        ((f"--tls-certificate={files.cert}",), "needs its key", 2),
        ((f"--tls-key={files.key}", "--address=0.0.0.0"), "needs its key", 2),
        (("--tls-certificate=/none", "--tls-key=/none"), "reading the certificate /none", 3),
    ):
        done = zsnapdb("serve", *words)
        assert (done.returncode, what in done.stderr) == (code, True), done.stderr


@contextmanager
def serving(files: Files, folder: Path, address: str = "127.0.0.1") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `zsnapdb serve` with these files while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("serve", f"--socket={folder}/none", f"--port={port}", f"--address={address}")
    tls = (f"--tls-certificate={files.cert}", f"--tls-key={files.key}")
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen([sys.executable, "-m", "zsnapdb", *words, *tls], stderr=said, env=ENVIRONMENT) as process,
    ):
        try:
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield process, port
        finally:
            process.terminate()
            process.wait(30)


def status(port: int, context: ssl.SSLContext) -> int:
    """Ask over HTTPS, and return the status of the answer."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    try:
        connection.request("GET", "/api/v1/openapi.json")
        with connection.getresponse() as answer:
            answer.read()
            return answer.status
    finally:
        connection.close()


def test_service_manager_hears_when_it_listens(tmp_path: Path) -> None:
    with socket.socket() as free, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        words = [sys.executable, "-m", "zsnapdb", "serve", f"--socket={tmp_path}/none", f"--port={port}"]
        environment = {**ENVIRONMENT, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(words, env=environment) as process:
            try:
                assert manager.recv(100) == b"READY=1"
                socket.create_connection(("127.0.0.1", port), 1).close()
            finally:
                process.terminate()
                process.wait(30)


def test_it_speaks_https_from_tls_1_2_on_and_reads_a_renewed_certificate(files: Files, tmp_path: Path) -> None:
    renewed = private(certificates.make(tmp_path / "renewed", "localhost"))
    before, after = (ssl.create_default_context(cafile=one.ca) for one in (files, renewed))
    with serving(files, tmp_path, "0.0.0.0") as (process, port):
        assert status(port, before) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status(port, after)
        assert b"HTTP/" not in _said_in_the_clear(port)
        old = ssl.create_default_context(cafile=files.ca)
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
            status(port, old)

        # A key that does not fit yet, as between the two halves of a renewal, changes nothing.
        shutil.copy2(renewed.cert, files.cert)
        process.send_signal(signal.SIGHUP)
        _wait_for(tmp_path / "said", "the certificate of before stays")
        assert status(port, before) == 200
        shutil.copy2(renewed.key, files.key)
        process.send_signal(signal.SIGHUP)
        _wait_for(tmp_path / "said", "again")
        assert status(port, after) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status(port, before)
    assert "Traceback" not in (tmp_path / "said").read_text()


def _said_in_the_clear(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as client, suppress(ConnectionResetError):
        client.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return client.recv(1000)
    return b""


def _wait_for(file: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in file.read_text():
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.05)


def test_what_was_checked_is_what_is_used_whatever_is_written_meanwhile(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal writes its first file between the look at the pair and its use."""
    renewed, before = private(certificates.make(tmp_path / "renewed", "localhost")), files.cert.read_text()
    pair = TlsFiles(files.cert, files.key, lambda: datetime.now(UTC))
    context, check = pair.context(), _TlsPair.context

    def check_then_write(one: _TlsPair) -> ssl.SSLContext:
        checked = check(one)
        shutil.copy2(renewed.cert, files.cert)
        return checked

    monkeypatch.setattr(_TlsPair, "context", check_then_write)
    pair.load(context)
    assert files.cert.read_text() != before
    client = ssl.create_default_context(cafile=files.ca)
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(here, there, server_hostname="localhost")
    answers = context.wrap_bio(there, here, server_side=True)
    for _ in range(4):
        for side in (asks, answers):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert asks.getpeercert(binary_form=True) == ssl.PEM_cert_to_DER_cert(before)
