"""Whoever answers in the place of a server over TCP gets no password, and no session that TLS does not protect."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.unit.support import certificates
from tests.unit.support.certificates import Files
from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import ConfigError, ServerError
from zsnapdb.base.patterns import is_loopback
from zsnapdb.jobs.host.server_copy import client_text
from zsnapdb.mysql.replication.channels import ReplicationSource
from zsnapdb.mysql.session import Address, Session
from zsnapdb.mysql.tls import NO_SETTINGS, Tls, TlsMode, client_options, own_authorities

PASSWORD = "the-password-itself"
NEIGHBOUR = "127.1"
"""A name of the loopback interface that does not look like one, so it counts as a host of the network."""
_SSL = 0x0800
_CAPABILITIES = 0x00FFF7FF  # everything but SSL, so that a test adds it


class FakeServer:
    """Sends a greeting as a server does, then answers as a test demands, and notes all that a client sends."""

    def __init__(self, *, offers_tls: bool, plugin: bytes, files: Files | None, answers: list[bytes]) -> None:
        self.capabilities = (_CAPABILITIES & ~_SSL) | (_SSL if offers_tls else 0)
        self.plugin, self.files, self.answers = plugin, files, answers
        self.received: list[bytes] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    def end(self) -> None:
        """Wait until the server has read what the client sent. A server that nobody connected to ends too."""
        with contextlib.suppress(OSError):
            # A close alone does not wake a thread that waits for a connection.
            self.listening.shutdown(socket.SHUT_RDWR)
        self.thread.join(20)
        self.listening.close()

    def _greeting(self) -> bytes:
        low, high = self.capabilities & 0xFFFF, self.capabilities >> 16
        return (
            b"\x0a8.4.0\0" + b"\x01\0\0\0" + b"a" * 8 + b"\0" + low.to_bytes(2, "little") + b"\x2d\x02\0"
            + high.to_bytes(2, "little") + b"\x15" + bytes(10) + b"b" * 12 + b"\0" + self.plugin + b"\0"
        )  # fmt: skip

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listening.accept()
            connection.settimeout(10)
            with contextlib.ExitStack() as open_sockets:
                self._talk(open_sockets.enter_context(connection), open_sockets)

    def _talk(self, connection: socket.socket, open_sockets: contextlib.ExitStack) -> None:
        connection.sendall(len(self._greeting()).to_bytes(3, "little") + b"\0" + self._greeting())
        number = 2
        if self.files is not None:
            request = connection.recv(36)
            assert len(request) == 36
            made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            made.load_cert_chain(self.files.cert, self.files.key)
            connection = open_sockets.enter_context(made.wrap_socket(connection, server_side=True))
            number = 3
        self._note(connection)
        for answer in self.answers:
            connection.sendall(len(answer).to_bytes(3, "little") + bytes([number]) + answer)
            self._note(connection)
            number += 2

    def _note(self, connection: socket.socket) -> None:
        data = connection.recv(65536)
        if data:
            self.received.append(data)


@contextlib.contextmanager
def answering(
    *,
    offers_tls: bool = False,
    plugin: bytes = b"mysql_native_password",
    files: Files | None = None,
    answers: list[bytes] | None = None,
) -> Iterator[FakeServer]:
    server = FakeServer(offers_tls=offers_tls, plugin=plugin, files=files, answers=answers or [])
    server.thread.start()
    try:
        yield server
    finally:
        server.end()


def attempt(server: FakeServer, tls: Tls, host: str = NEIGHBOUR) -> ServerError:
    with pytest.raises(ServerError) as error:
        Session.open(Address("zsnapdb", None, host, server.port, tls), SecretStr(PASSWORD), timeout=5, read_timeout=5)
    server.end()
    return error.value


def test_over_the_network_a_server_without_tls_gets_nothing_at_all() -> None:
    with answering() as server:
        error = attempt(server, NO_SETTINGS)
    assert "TLS is required, and the server does not offer it" in error.message
    assert "tls_ca" in error.hint
    assert server.received == []


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog", b"mysql_old_password"])
def test_without_tls_nobody_gets_the_password_by_asking_for_it(plugin: bytes) -> None:
    for mode in (TlsMode.PREFERRED, TlsMode.OFF):
        with answering(answers=[b"\xfe" + plugin + b"\0Password: "]) as server:
            error = attempt(server, Tls(mode))
        assert "no TLS" in error.message
        assert len(server.received) == 1
        assert not any(PASSWORD.encode() in data for data in server.received)


def test_without_tls_no_password_is_encrypted_with_a_key_that_comes_over_the_line() -> None:
    key = b"\x01-----BEGIN PUBLIC KEY-----\nMFwwDQ==\n-----END PUBLIC KEY-----\n"
    with answering(plugin=b"caching_sha2_password", answers=[b"\x01\x04", key]) as server:
        error = attempt(server, Tls(TlsMode.PREFERRED))
    assert (
        "no TLS: the server asks for the password, encrypted with a key that the server sends itself" in error.message
    )
    assert server.received[1:] == [b"\x01\0\0\x03\x02"]


@pytest.mark.parametrize("mode", [None, TlsMode.REQUIRED])
def test_who_answers_with_another_certificate_gets_no_login(tmp_path: Path, mode: TlsMode | None) -> None:
    own, theirs = certificates.make(tmp_path / "own", "db"), certificates.make(tmp_path / "theirs", "db")
    with answering(offers_tls=True, files=theirs) as server:
        error = attempt(server, Tls(mode, ca=own.ca))
    assert "CERTIFICATE_VERIFY_FAILED" in error.message
    assert "tls_ca" in error.hint
    assert server.received == []


def test_a_certificate_must_name_the_host_unless_its_authority_is_enough(tmp_path: Path) -> None:
    files = certificates.make(tmp_path / "own", "db.example.org")
    with answering(offers_tls=True, files=files) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in attempt(server, Tls(ca=files.ca)).message
    assert server.received == []
    with answering(offers_tls=True, files=files) as server:
        attempt(server, Tls(ca=files.ca, checks_name=False))
    assert len(server.received) == 1


def test_a_missing_authority_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with answering(offers_tls=True) as server, pytest.raises(ConfigError, match=r"none\.pem"):
        Session.open(Address("u", None, NEIGHBOUR, server.port, Tls(ca=tmp_path / "none.pem")), SecretStr(""))


def test_only_the_loopback_interface_needs_no_tls() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert not any(is_loopback(host) for host in ("10.0.0.1", "db1", "127.0.0.1.example.org", NEIGHBOUR, ""))
    assert NO_SETTINGS.mode_to("127.0.0.1") is TlsMode.PREFERRED
    assert NO_SETTINGS.mode_to("db1") is TlsMode.REQUIRED


def test_clients_that_we_start_verify_the_same_certificate() -> None:
    address = Address("u", None, "db1", 3306, Tls(ca=Path("/ca.pem")))
    text = client_text(address, SecretStr("p"))
    for line in ("loose_ssl_mode=VERIFY_IDENTITY", "loose_ssl_verify_server_cert=1"):
        assert line in text.splitlines()
    assert "ssl_ca=" in text
    assert "public_key" not in text
    assert "loose_ssl_mode=VERIFY_CA" in client_options(Tls(ca=Path("/ca.pem"), checks_name=False), "db1")
    assert "loose_ssl_mode=DISABLED" in client_options(Tls(TlsMode.OFF), "db1")
    assert "loose_ssl_mode=PREFERRED" in client_options(NO_SETTINGS, "127.0.0.1")
    assert "ssl" not in client_text(Address("u", Path("/s")), SecretStr("p"))


@pytest.mark.parametrize("flavour", Flavour)
def test_a_replica_verifies_its_source(flavour: Flavour) -> None:
    def source(host: str, tls: Tls) -> ReplicationSource:
        return ReplicationSource(host, 3306, "u", "p", tls)

    text, files = source("db1", Tls(ca=Path("/ca.pem"))).protection(flavour)
    word = "MASTER" if flavour is Flavour.MARIADB else "SOURCE"
    assert text == f", {word}_SSL = 1, {word}_SSL_CA = %s, {word}_SSL_VERIFY_SERVER_CERT = 1"
    assert files == ("/ca.pem",)
    assert source("db1", Tls(ca=Path("/ca.pem"))).files == (Path("/ca.pem"),)
    loopback = source("127.0.0.1", NO_SETTINGS).protection(flavour)
    assert loopback == (", GET_SOURCE_PUBLIC_KEY = 1" if flavour is Flavour.MYSQL else "", ())


@pytest.mark.parametrize("flavour", Flavour)
def test_a_replica_without_a_configured_ca_verifies_by_the_authorities_of_its_host(flavour: Flavour) -> None:
    """MySQL demands a CA for that (refman 8.4, "Command Options for Encrypted Connections", VERIFY_IDENTITY)."""
    source = ReplicationSource("db1", 3306, "u", "p", NO_SETTINGS)
    text, files = source.protection(flavour)
    assert "_SSL_CA = %s" in text
    assert [Path(str(file)) for file in files] == [own_authorities()] == list(source.files)


@pytest.mark.parametrize("flavour", Flavour)
def test_a_replica_has_no_open_line_to_another_host_unless_tls_is_off(flavour: Flavour) -> None:
    """A replica knows no preferred TLS: with it a neighbour that strips TLS would get the account."""
    word = "MASTER" if flavour is Flavour.MARIADB else "SOURCE"

    def protection(tls: Tls) -> tuple[str, tuple[object, ...]]:
        return ReplicationSource("db1", 3306, "u", "p", tls).protection(flavour)

    preferred = Tls(TlsMode.PREFERRED, asks_for_public_key=True)
    assert protection(preferred) == (f", {word}_SSL = 1, {word}_SSL_VERIFY_SERVER_CERT = 0", ())
    off = f", {word}_SSL = 0, {word}_SSL_VERIFY_SERVER_CERT = 0"
    assert protection(Tls(TlsMode.OFF)) == (off, ())
    allowed = protection(Tls(TlsMode.OFF, asks_for_public_key=True))[0]
    assert allowed == off + (", GET_SOURCE_PUBLIC_KEY = 1" if flavour is Flavour.MYSQL else "")
