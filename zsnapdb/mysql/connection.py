"""Connections with PyMySQL. Only this module uses the library PyMySQL.

Import this module only to connect, because many commands run for less time than the library needs to load.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pymysql
from pymysql.constants import CLIENT, FIELD_TYPE

from zsnapdb.base.deadline import timed, within
from zsnapdb.base.errors import ServerError
from zsnapdb.base.name_resolution import addresses_of
from zsnapdb.base.timed_tls import with_timed_sockets
from zsnapdb.mysql.session import NO_TLS, Address
from zsnapdb.mysql.tls import TlsMode, context

if TYPE_CHECKING:
    _PlainConnection = pymysql.Connection[Any]
else:
    _PlainConnection = pymysql.Connection

_READABLE_PLUGINS = {b"mysql_clear_password", b"dialog", b"mysql_old_password"}
"""Authentication plugins that send the password itself or an equivalent (refman 8.4, "Authentication Plugins")."""
_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)."""
_UNREACHABLE = 2003
"""CR_CONN_HOST_ERROR."""
_MALFORMED = 2027
"""CR_MALFORMED_PACKET (refman 8.4, "Client Error Message Reference")."""
_MOST_BYTES = 1 << 30
"""Maximum size of one answer or one batch of rows."""
UnbufferedCursor = pymysql.cursors.SSCursor


class _TimedConnection(_PlainConnection):
    """A connection with a time limit for each exchange. PyMySQL itself only limits the time of each packet read."""

    _answer_seconds: float
    _result: Any

    def __init__(self, *, read_timeout: float, **options: Any) -> None:
        self._answer_seconds = read_timeout
        super().__init__(read_timeout=read_timeout, write_timeout=read_timeout, **options)

    def connect(self, sock: socket.socket | None = None) -> None:
        """Connect and log in. One answer's time limit applies to the whole login, even if it takes many packets."""
        try:
            with self.exchange():
                self._resolve()
                super().connect(sock)
        except BaseException as error:
            self._force_close()
            if isinstance(error, UnicodeDecodeError):
                raise pymysql.OperationalError(
                    _MALFORMED, "the greeting does not come from a MySQL or MariaDB server"
                ) from error
            raise

    def _resolve(self) -> None:
        if self.unix_socket is not None:
            return
        try:
            addresses_of(str(self.host), self.connect_timeout)
        except OSError as error:
            raise pymysql.OperationalError(
                _UNREACHABLE, f"Can't connect to MySQL server on {self.host!r} ({error})"
            ) from error

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Apply one answer's time limit and size limit to everything that a `with` block sends and reads.

        Raises OperationalError, also for malformed packets, for which the parser of the library raises other errors.
        """
        try:
            with within(self._answer_seconds, most_bytes=_MOST_BYTES):
                yield
        except UnicodeDecodeError:
            raise
        except (ValueError, LookupError, TypeError, AssertionError, struct.error) as error:
            self._force_close()
            raise pymysql.OperationalError(
                _MALFORMED, "the answer does not come from a MySQL or MariaDB server"
            ) from error

    def _force_close(self) -> None:
        """Close the connection immediately. Also end an answer in progress, so that no code reads the rest of it."""
        broken = self._result
        if broken is not None:
            broken.unbuffered_active, broken.connection = False, None
        super()._force_close()  # type: ignore[misc]

    def _get_server_information(self) -> None:
        """Read the greeting, which is the first packet, within the time limit of the whole exchange."""
        self._sock = timed(self._sock)  # type: ignore[has-type]
        self._rfile = self._sock.makefile("rb")
        super()._get_server_information()  # type: ignore[misc]


class Connection(_TimedConnection):
    """A connection that sends account data only after it is protected as the server's address requires."""

    Failure: ClassVar[type[pymysql.MySQLError]] = pymysql.MySQLError
    """Base class of the library's errors."""
    server_capabilities: int

    def __init__(self, address: Address, *, takes_scripts: bool, **options: Any) -> None:
        self._address = address
        self._public_key: bytes | None = None
        self._secure = False
        protection = None if address.socket else context(address.tls, address.host)
        if protection is not None:
            with_timed_sockets(protection)
        super().__init__(
            user=address.user,
            unix_socket=str(address.socket) if address.socket else None,
            host=address.host,
            port=address.port,
            ssl=protection,
            ssl_disabled=protection is None,
            client_flag=CLIENT.MULTI_STATEMENTS if takes_scripts else 0,
            **options,
        )

    def peer(self) -> int | None:
        """Return the process at the other end of a Unix socket; None for a TCP connection or an invisible process.

        The kernel returns the process id in this PID namespace, or 0 if the process is in another namespace (unix(7),
        SO_PEERCRED).
        """
        line: socket.socket | None = self._sock
        if line is None or line.family != socket.AF_UNIX:
            return None
        said = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(said)[0]) or None

    def cursor_by_name(self) -> pymysql.cursors.DictCursor:
        """Return a cursor whose rows are dictionaries."""
        return self.cursor(pymysql.cursors.DictCursor)

    def unbuffered_cursor(self) -> UnbufferedCursor:
        """Return a cursor that fetches rows on demand."""
        return self.cursor(pymysql.cursors.SSCursor)

    def read_times_as_text(self) -> None:
        """Make this connection return times as the text that the server sends, with all fractional digits."""
        for kind in (FIELD_TYPE.TIME, FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP):
            self.decoders.pop(kind, None)

    @property
    def server_public_key(self) -> bytes | None:
        """The key that encrypts the password on a connection without TLS.

        The setter raises OperationalError if the connection must not use a key that the answering server sent.
        """
        return self._public_key

    @server_public_key.setter
    def server_public_key(self, key: bytes | None) -> None:
        if key is not None:
            self._refuse_open_line(
                "the server asks for the password, encrypted with a key that the server sends itself"
            )
        self._public_key = key

    def _refuse_open_line(self, why: str) -> None:
        if not (self._secure or self._address.socket or self._address.tls.may_send_to(self._address.host)):
            raise pymysql.OperationalError(
                NO_TLS, f"the password was not sent, because the connection has no TLS: {why}"
            )

    def _request_authentication(self) -> None:
        """Log in.

        Raises OperationalError, before anything is sent, if the address requires TLS and the server does not offer it.
        """
        if self.ssl and not self.server_capabilities & CLIENT.SSL:
            if self._address.tls.mode_to(self._address.host) is TlsMode.REQUIRED:
                raise pymysql.OperationalError(NO_TLS, "TLS is required, and the server does not offer it")
            self.ssl = False
            self.client_flag &= ~CLIENT.SSL
        super()._request_authentication()  # type: ignore[misc]

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, *handler: Any) -> Any:
        if plugin_name in _READABLE_PLUGINS:
            self._refuse_open_line(f"the server asks for the password in a readable form ({plugin_name.decode()})")
        return super()._process_auth(plugin_name, auth_packet, *handler)  # type: ignore[misc]


def greeting(address: Address, *, timeout: float = 10.0) -> str:
    """Return the version that a server sends before the login. Raise ServerError if the server is unreachable.

    The login is expected to fail. It uses a name that no account has, so it cannot lock an account by wrong passwords.
    """
    connection = _TimedConnection(
        user="zsnapdb-greeting",
        unix_socket=str(address.socket) if address.socket else None,
        host=address.host,
        port=address.port,
        connect_timeout=max(1, round(timeout)),
        read_timeout=timeout,
        defer_connect=True,
    )
    try:
        connection.connect()
    except (pymysql.MySQLError, OSError, RuntimeError) as error:
        if not isinstance(getattr(connection, "server_version", None), str):
            raise ServerError(
                f"asking the server at {address} for its version: {error}",
                hint="is the server running? With --flavour mysql or --flavour mariadb nothing is asked",
            ) from error
    else:
        connection.close()
    return str(getattr(connection, "server_version", ""))
