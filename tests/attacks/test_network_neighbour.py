"""A network neighbour between this host and a server: strips TLS, or answers as the server. It gets no login.

The server is a clone with real certificates. Each connection goes through a proxy, to a name that does not count as
loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.lab.inside import ledger
from tests.system.in_guest import Lab, remove, run
from tests.unit.support import certificates
from tests.unit.support.certificates import Files
from zsnapdb.base.errors import ServerError
from zsnapdb.jobs.host.server_copy import client_file
from zsnapdb.mysql.session import Address, Session
from zsnapdb.mysql.tls import NO_SETTINGS, Tls, TlsMode

pytestmark = pytest.mark.usefixtures("first")

HOST = "127.1"
"""An address of the loopback interface that no program takes for one by its name."""
_SSL = 0x0800


@dataclass
class Neighbour:
    """Forwards a connection to a server. `strips`: it takes the offer of TLS out of the server's greeting."""

    port: int
    strips: bool
    sent: list[bytes] = field(default_factory=list)
    """What clients sent."""

    def serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self.port)) as server:
            greeting = bytearray(server.recv(4096))
            if self.strips:
                # The lower capabilities follow the version, the thread's id, eight bytes of salt and a zero.
                place = greeting.index(b"\0", 5) + 1 + 4 + 8 + 1
                greeting[place + 1] &= ~(_SSL >> 8) & 0xFF
            client.sendall(greeting)
            threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
            while data := client.recv(65536):
                self.sent.append(data)
                server.sendall(data)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)


@contextlib.contextmanager
def between(port: int, *, strips: bool = False) -> Iterator[tuple[Neighbour, int]]:
    """A neighbour in front of the server at the port; yields it with the port at which it listens."""
    neighbour = Neighbour(port, strips)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=neighbour.serve, args=(listening,), daemon=True).start()
        yield neighbour, int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Protected:
    """A clone with certificates: its port, account and password, the files, and the program of its clients."""

    port: int
    user: str
    password: SecretStr
    files: Files
    client: str

    def session(self, port: int, tls: Tls) -> Session:
        return Session.open(Address(self.user, None, HOST, port, tls), self.password)

    def run_client(self, port: int, tls: Tls) -> tuple[int, str]:
        """Run a client as zsnapdb runs it, with an option file. Return its status and output."""
        with client_file(Address(self.user, None, HOST, port, tls), self.password) as file:
            done = run(self.client, f"--defaults-file={file}", "-N", "-e", "SHOW STATUS LIKE 'Ssl_cipher'")
        return done.code, done.stdout + done.stderr


@pytest.fixture(scope="module")
def protected(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    files = certificates.make(Path("/srv/tls"), HOST, "127.0.0.1")
    account = pwd.getpwnam("mysql")
    for file in (files.ca, files.cert, files.key):
        os.chown(file, account.pw_uid, account.pw_gid)
    options = [f"ssl_ca={files.ca}", f"ssl_cert={files.cert}", f"ssl_key={files.key}"]
    config = lab.changed(("options = [", f"options = {json.dumps(options)[:-1]}, "))
    made = lab.zsnapdb("clone", "create", "main", "--name", "tls", "--admin", "--json", config=config).json
    client = "/opt/mysql/bin/mysql" if lab.flavour == "mysql" else "/usr/bin/mariadb"
    yield Protected(made["clone"]["port"], made["user"], SecretStr(made["password"]), files, client)
    assert lab.zsnapdb("clone", "destroy", "tls", config=config).code == 0


def test_sessions_and_clients_have_tls_with_a_server_whose_certificate_is_right(protected: Protected) -> None:
    tls = Tls(ca=protected.files.ca)
    with between(protected.port) as (neighbour, port):
        with protected.session(port, tls) as session:
            assert session.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
        code, output = protected.run_client(port, tls)
        assert (code, bool(output.split()[1:])) == (0, True), output
    assert not any(protected.user.encode() in data for data in neighbour.sent), "nobody on the line reads the login"


def test_a_neighbour_that_strips_tls_gets_no_login(protected: Protected) -> None:
    with between(protected.port, strips=True) as (neighbour, port):
        with pytest.raises(ServerError, match="TLS is required"):
            protected.session(port, Tls(ca=protected.files.ca))
        code, output = protected.run_client(port, Tls(ca=protected.files.ca))
        assert code != 0, output
    assert not any(protected.user.encode() in data for data in neighbour.sent)


@pytest.mark.parametrize("name", ["another", "none"])
def test_a_server_of_another_authority_gets_no_login(protected: Protected, tmp_path: Path, name: str) -> None:
    """A neighbour that answers with its own certificate looks to a client like a server of an unknown authority."""
    tls = Tls(ca=certificates.make(tmp_path / name, HOST).ca) if name == "another" else NO_SETTINGS
    with between(protected.port) as (neighbour, port):
        with pytest.raises(ServerError, match="CERTIFICATE_VERIFY_FAILED") as error:
            protected.session(port, tls)
        assert "tls_ca" in error.value.hint
        code, output = protected.run_client(port, tls)
        assert code != 0, output
    assert not any(protected.user.encode() in data for data in neighbour.sent)


def test_where_tls_is_only_preferred_a_neighbour_still_gets_no_password(lab: Lab, protected: Protected) -> None:
    """Without TLS an account of caching_sha2_password needs a public key, which the neighbour could have made.

    A server that remembers an earlier login asks for no password: this one is made to forget.
    """
    with protected.session(protected.port, Tls(ca=protected.files.ca)) as session:
        session.query("FLUSH PRIVILEGES")
    with between(protected.port, strips=True) as (neighbour, port):
        if lab.flavour == "mysql":
            with pytest.raises(ServerError, match="no TLS: the server asks for the password"):
                protected.session(port, Tls(TlsMode.PREFERRED))
            with protected.session(port, Tls(TlsMode.PREFERRED, asks_for_public_key=True)) as session:
                assert session.value("SELECT 1") == 1
        else:
            with protected.session(port, Tls(TlsMode.PREFERRED)) as session:
                assert session.value("SELECT 1") == 1
    assert not any(protected.password.get_secret_value().encode() in data for data in neighbour.sent)


def test_a_command_names_what_is_missing_and_runs_with_it(lab: Lab, protected: Protected) -> None:
    secret = Path("/srv/tls/password")
    secret.write_text(protected.password.get_secret_value())
    secret.chmod(0o600)
    with between(protected.port) as (_, port):
        server = 'socket = "/run/mysqld/mysqld.sock"\nuser = "zsnapdb"\npassword_file = "/etc/zsnapdb/main.password"\n'
        there = f'host = "{HOST}"\nport = {port}\nuser = "{protected.user}"\npassword_file = "{secret}"\n'
        done = lab.zsnapdb("doctor", "main", config=lab.changed((server, there)))
        assert "CERTIFICATE_VERIFY_FAILED" in done.stdout
        assert "tls_ca" in done.stdout
        known = lab.changed((server, f'{there}tls_ca = "{protected.files.ca}"\n'))
        assert "CERTIFICATE_VERIFY_FAILED" not in lab.zsnapdb("doctor", "main", config=known).stdout


REPLICA = "tank/follower"


@pytest.fixture
def follower(protected: Protected) -> Iterator[Path]:
    """An account for a replica on the protected server; the file has its password. Removes the replica at the end."""
    with protected.session(protected.port, Tls(ca=protected.files.ca)) as session:
        session.query("CREATE USER follower@localhost IDENTIFIED BY 'Repl-1ca-x'")
        session.query("GRANT REPLICATION SLAVE ON *.* TO follower@localhost")
    file = Path("/srv/tls/follower")
    file.write_text("Repl-1ca-x\n")
    file.chmod(0o600)
    yield file
    remove(REPLICA)


def test_a_replica_gives_its_login_to_its_source_alone(lab: Lab, protected: Protected, follower: Path) -> None:
    """While a neighbour strips TLS the restore says why it does not connect; without the neighbour it goes on."""
    socket_line = 'socket = "/run/mysqld/mysqld.sock"\n'
    config = lab.changed((socket_line, f'{socket_line}tls_ca = "{protected.files.ca}"\n'))
    with between(protected.port, strips=True) as (neighbour, port):
        words = ("--to", "latest", "--target", REPLICA, "--handover", "replica", "--source", f"{HOST}:{port}")
        login = ("--source-user", "follower", "--source-password-file", str(follower))
        refused = lab.zsnapdb("restore", "main", *words, *login, "--json", config=config)
        assert refused.code != 0
        assert "cannot connect to its source" in refused.stderr, refused.stderr
        assert not any(b"follower" in data for data in neighbour.sent), "nobody on the line has the login"
        neighbour.strips = False
        done = lab.zsnapdb("restore", "main", "--resume", "--json", config=config).json
        assert not any(b"follower" in data for data in neighbour.sent), "nobody on the line reads the login"
    own_socket = f"{done['mount']}/.zsnapdb/server.sock"
    with ledger.connect(own_socket, "root", "") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SLAVE STATUS" if lab.flavour == "mariadb" else "SHOW REPLICA STATUS")
        names = [column[0] for column in cursor.description]
        status = dict(zip(names, cursor.fetchall()[0], strict=True))
    word = "Master" if lab.flavour == "mariadb" else "Source"
    assert (status[f"{word}_SSL_Allowed"], status[f"{word}_SSL_CA_File"]) == ("Yes", str(protected.files.ca))
