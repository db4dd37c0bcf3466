"""A server connection that has one owner.

PyMySQL is loaded only when a connection is opened, because many commands open no connection.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from zsnapdb.base.errors import LockNotGranted, ServerError, how_to_install
from zsnapdb.mysql.tls import NO_SETTINGS, Tls

if TYPE_CHECKING:
    from zsnapdb.mysql.connection import Connection, UnbufferedCursor

_PACKAGES = {"pynacl": "PyNaCl", "cryptography": "cryptography"}
_PACKAGE = re.compile(r"'(\w+)' package is required for (\w+)")
_PLUGIN = re.compile(r"Authentication plugin '(?:b')?\"?([A-Za-z0-9_]{1,64})")
_ANOTHER = (
    "let zsnapdb's account log in another way, on MariaDB ALTER USER ... IDENTIFIED VIA unix_socket OR"
    " mysql_native_password USING PASSWORD('...'), on MySQL ALTER USER ... IDENTIFIED WITH caching_sha2_password BY"
    " '...'"
)


def auth_hint(text: str) -> str:
    """Return the hint for a login error of the client library; "" if no authentication plugin caused the error."""
    package, plugin = _PACKAGE.search(text), _PLUGIN.search(text)
    if package is not None and package[1] in _PACKAGES:
        own = _PACKAGES[package[1]]
        return f"the account has the plugin {package[2]}: {how_to_install(own)}, or {_ANOTHER}"
    if plugin is not None:
        return f"zsnapdb cannot log in with the plugin {plugin[1]}: {_ANOTHER}"
    return ""


UNLIMITED = 18446744073709551615
_IDLE_SECONDS = 2 * 86400
"""Seconds until the server closes an idle session.

Uploads, hooks and waits may take longer than the server's configured limit.
"""
_NET_SECONDS = 3600
"""Seconds within which a client must read the next rows.

A client may be slow, because it writes the rows to a disk or another server.
"""


@dataclass(frozen=True)
class SessionSetting:
    """A session variable and its value.

    `mysql` and `mariadb` are the first releases with the variable; None means that the family lacks it. If `answers` is
    set, the variable changes the meaning of a result or statement. Sessions for users' statements keep the server's
    value of such a variable.
    """

    name: str
    value: str | int
    mysql: int | None = 50700
    mariadb: int | None = 100500
    answers: bool = False


SETTINGS = (
    SessionSetting("sql_select_limit", UNLIMITED),
    # This setting turns sql_big_selects off, so sql_big_selects must be set afterwards.
    SessionSetting("max_join_size", UNLIMITED),
    SessionSetting("sql_big_selects", 1),
    SessionSetting("sql_safe_updates", 0),
    # The maximum in MariaDB 10.11 and later (observed).
    SessionSetting("group_concat_max_len", 1073741824),
    SessionSetting("autocommit", 1),
    SessionSetting("wait_timeout", _IDLE_SECONDS),
    SessionSetting("net_read_timeout", _NET_SECONDS),
    SessionSetting("net_write_timeout", _NET_SECONDS),
    SessionSetting("max_execution_time", 0, mysql=50708, mariadb=None),
    SessionSetting("max_statement_time", 0, mysql=None),
    SessionSetting("idle_transaction_timeout", 0, mysql=None),
    SessionSetting("idle_readonly_transaction_timeout", 0, mysql=None),
    SessionSetting("idle_write_transaction_timeout", 0, mysql=None),
    SessionSetting("transaction_isolation", "REPEATABLE-READ", mysql=50720, mariadb=None),
    SessionSetting("transaction_read_only", 0, mysql=50720, mariadb=None),
    SessionSetting("tx_isolation", "REPEATABLE-READ", mysql=None),
    SessionSetting("tx_read_only", 0, mysql=None),
    SessionSetting("completion_type", "NO_CHAIN"),
    SessionSetting("sql_quote_show_create", 1),
    SessionSetting("show_create_table_verbosity", 0, mysql=50722, mariadb=None),
    SessionSetting("show_gipk_in_create_table_and_information_schema", 1, mysql=80030, mariadb=None),
    SessionSetting("lc_messages", "en_US"),
    SessionSetting("sql_mode", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION", answers=True),
    SessionSetting("old_mode", "UTF8_IS_UTF8MB3", mysql=None, mariadb=100601, answers=True),
    # Otherwise, tables may be read as of another time. The keyword DEFAULT means the current time, for every global
    # value.
    SessionSetting("system_versioning_asof", "DEFAULT", mysql=None, answers=True),
    SessionSetting("sql_if_exists", 0, mysql=None, mariadb=100600, answers=True),
    SessionSetting("time_zone", "+00:00", answers=True),
    SessionSetting("lc_time_names", "en_US", answers=True),
    SessionSetting("sql_auto_is_null", 0, answers=True),
    SessionSetting("foreign_key_checks", 1, answers=True),
    SessionSetting("unique_checks", 1, answers=True),
    SessionSetting("old_passwords", 0, mysql=None, answers=True),
)
CHARACTERS = (
    SessionSetting("character_set_client", "utf8mb4"),
    SessionSetting("character_set_connection", "utf8mb4"),
    SessionSetting("character_set_results", "utf8mb4"),
    SessionSetting("collation_connection", "utf8mb4_general_ci", answers=True),
)
"""Variables that SET NAMES sets.

A server may ignore the character set requested at login (character_set_client_handshake).
"""


def _choose_settings(settings: Sequence[SessionSetting], *, of_users: bool) -> list[SessionSetting]:
    return [setting for setting in settings if not (of_users and setting.answers)]


def set_statement(*, of_users: bool) -> str:
    """Return the statement that sets all settings.

    With `of_users`, the statement omits settings that change the meaning of statements.
    """
    names = "utf8mb4" if of_users else "utf8mb4 COLLATE utf8mb4_general_ci"
    parts = [
        _for_releases(f", SESSION {setting.name} = {_quoted(setting.value)}", setting)
        for setting in _choose_settings(SETTINGS, of_users=of_users)
    ]
    return f"SET NAMES {names}{''.join(parts)}"


def global_statement() -> str:
    """Return the statement that sets global variables on a server of zsnapdb.

    As a result, sessions of a dump program also have these settings.
    """
    # A dump program sets its own modes and time zone, but it would otherwise read the tables as of another time.
    as_of = [setting for setting in SETTINGS if setting.name == "system_versioning_asof"]
    first, *others = _choose_settings(SETTINGS, of_users=True) + as_of
    parts = [_for_releases(f", GLOBAL {each.name} = {_quoted(each.value)}", each) for each in others]
    return f"SET GLOBAL {first.name} = {_quoted(first.value)}{''.join(parts)}"


def proof_query(*, of_users: bool) -> str:
    """Return a query for one row that contains the name of each setting, followed by its value."""
    parts = [
        _for_releases(f", '{setting.name}', @@SESSION.{setting.name}", setting)
        for setting in _choose_settings((*CHARACTERS, *SETTINGS), of_users=of_users)
    ]
    return f"SELECT CONNECTION_ID(){''.join(parts)}"


def differing(row: Sequence[object]) -> tuple[str, ...]:
    """Return the settings that the server did not apply, each with the server's value.

    `row` is the result of `proof_query`.
    """
    wanted = {setting.name: str(setting.value) for setting in (*CHARACTERS, *SETTINGS)}
    found = {_text(name): _text(value) for name, value in zip(row[1::2], row[2::2], strict=True)}
    missing = [name for name in ("sql_select_limit", "character_set_results") if name not in found]
    wrong = [f"{name}={value}" for name, value in found.items() if _other(wanted.get(name, ""), value)]
    return (*wrong, *missing)


def _other(wanted: str, value: str) -> bool:
    if "," in wanted:
        return not set(wanted.split(",")) <= set(value.split(","))
    try:
        # MariaDB returns time limits with decimals.
        return float(wanted) != float(value) if wanted[:1].isdecimal() else wanted != value
    except ValueError:
        return True


def _text(value: object) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _quoted(value: str | int) -> str:
    return str(value) if isinstance(value, int) or value == "DEFAULT" else f"'{value}'"


def _for_releases(text: str, setting: SessionSetting) -> str:
    """Return the text inside a comment that only releases with the variable execute."""
    if setting.mysql == 50700 and setting.mariadb == 100500:
        return text
    of_mysql = "" if setting.mysql is None else f"/*!{max(setting.mysql, 50701):05d} {text}*/"
    return of_mysql + ("" if setting.mariadb is None else f"/*M!{setting.mariadb} {text}*/")


Row = tuple[Any, ...]

_DENIED = {1044, 1045, 1698}
_UNREACHABLE = {2002, 2003, 2005}
_LOST = {0, 2006, 2013, 2055, 1927, 4031}
_LOCK_WAIT = {1205, 3572}
_PRIVILEGE = {1095, 1227, 1142, 1370}
_SYNTAX = 1064
_NO_ROOM_TO_PREPARE = 1461
_END = "zsnapdb: end of the script"


@dataclass(frozen=True)
class Address:
    """The address of a server, which is a socket, or a host and a port."""

    user: str
    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int = 3306
    tls: Tls = NO_SETTINGS

    def __str__(self) -> str:
        return f"{self.user}@{self.socket}" if self.socket else f"{self.user}@{self.host}:{self.port}"


_NAMED_HOST = re.compile(r"MySQL server on '[^']*'")
UNREACHABLE_HINT = "start the server, or correct socket, host and port of the instance in the configuration"
NO_TLS = 2026
"""The error number CR_SSL_CONNECTION_ERROR, for a failed TLS connection (refman 8.4, "Client Error Message Reference").
"""


def _classified(error: Exception, doing: str, address: Address) -> ServerError:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    # The library names a host even for a socket.
    text = _NAMED_HOST.sub("the server", text)
    message = f"{doing} on {address}: {text} ({number})"
    if number in _DENIED:
        return ServerError(
            message,
            hint="check user and password_file of the instance; `zsnapdb grants` prints the statements for its account",
        )
    if number == NO_TLS or "CERTIFICATE_VERIFY_FAILED" in text or "[SSL" in text:
        return ServerError(
            message,
            hint="set tls_ca of the instance to the authority of the server's certificate (ca.pem of MySQL's own). Set"
            ' tls_verify = "ca" if the certificate does not name the host, or tls = "preferred" in a trusted network',
        )
    if number in _UNREACHABLE:
        return ServerError(message, hint=UNREACHABLE_HINT)
    if number in _LOCK_WAIT:
        return LockNotGranted(
            message, hint="a long statement or DDL is in the way: see `SHOW PROCESSLIST`; or raise lock.deadline"
        )
    if number in _PRIVILEGE:
        return ServerError(message, hint="grant the privilege to zsnapdb's account: `zsnapdb grants` prints all")
    if number == _NO_ROOM_TO_PREPARE:
        return ServerError(
            message, hint="raise max_prepared_stmt_count: zsnapdb needs one prepared statement at a time"
        )
    if number in _LOST:
        return ServerError(message, hint="the connection was lost; see the error log of the server")
    return ServerError(message, hint=auth_hint(text))


class Session:
    """An open connection with one owner. Connections are never pooled or reopened."""

    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection = connection
        self.address = address
        self.connection_id = int(connection.thread_id())  # type: ignore[no-untyped-call]

    @classmethod
    def open(
        cls,
        address: Address,
        password: SecretStr,
        *,
        timeout: float = 10.0,
        read_timeout: float = 60.0,
        scripts: bool = False,
        of_users: bool = False,
    ) -> Session:
        """Connect with the settings in SETTINGS, independent of the server's global variables.

        With `of_users`, the session runs statements of users, so settings that change the meaning of statements keep
        the server's values. `timeout` (seconds) limits only the time to establish the connection. `read_timeout`
        (seconds) limits the login, each statement up to its last row, and each batch of a stream. Therefore a server
        that answers byte by byte causes an error instead of an endless wait. `scripts` allows several statements in one
        text, each with the time limit `read_timeout`. Raises ServerError if the server is unreachable, refuses the
        account, or does not apply a setting.
        """
        from zsnapdb.mysql.connection import Connection

        try:
            connection = Connection(
                address,
                password=password.get_secret_value(),
                connect_timeout=max(1, round(timeout)),
                read_timeout=read_timeout,
                autocommit=True,
                charset="utf8mb4",
                program_name="zsnapdb",
                takes_scripts=scripts,
            )
        except Connection.Failure as error:
            raise _classified(error, "connecting", address) from error
        except (OSError, RuntimeError) as error:
            raise ServerError(f"connecting on {address}: {error}", hint=auth_hint(str(error))) from error
        session = cls(connection, address)
        try:
            session._set(of_users=of_users or scripts)
        except BaseException:
            session.close()
            raise
        return session

    def _set(self, *, of_users: bool) -> None:
        self.query(set_statement(of_users=of_users))
        (row,) = self.query(proof_query(of_users=of_users)) or ((),)
        wrong = differing(row)
        if wrong:
            raise ServerError(
                f"the server at {self.address} did not take settings of the session: {', '.join(wrong)}",
                hint="connect to the server itself, not through a proxy; see socket, host and port of the instance",
            )

    @property
    def peer(self) -> int | None:
        """The server's process; None if the session uses no socket, or if this host cannot see the process."""
        return self._connection.peer()

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run one statement and return its rows (none for a statement without a result)."""
        with self._errors(f"`{sql}`"), self._connection.cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall()) if cursor.description else []

    def records(self, sql: str) -> list[dict[str, Any]]:
        """Run one statement and return its rows by column name. (Servers have different columns in SHOW statements.)"""
        with self._errors(f"`{sql}`"), self._connection.cursor_by_name() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def script(self, text: str) -> tuple[int, int]:
        """Run the statements of a script, each ended by a semicolon, as one transaction.

        Return the number of statements and the number of changed rows. The server itself splits the text. A script that
        ends in an open comment or quote is refused, because its last part would not run. If a statement fails, raise
        ServerError with the statement; the server rolls back the earlier statements as far as it can.
        """
        done = rows = 0
        try:
            with self._connection.exchange():
                self._connection.begin()
            with self._connection.cursor() as cursor:
                with self._connection.exchange():
                    cursor.execute(f"{text}\nSELECT '{_END}'")
                while cursor.description is None or cursor.fetchall() != ((_END,),):
                    done, rows = done + 1, rows + (0 if cursor.description else max(0, cursor.rowcount))
                    with self._connection.exchange():
                        is_more = cursor.nextset()
                    if not is_more:
                        raise ServerError(
                            f"statement {done} of the script is not terminated", hint="close every quote and comment"
                        )
            with self._connection.exchange():
                self._connection.commit()
        except self._connection.Failure as error:
            raise _classified(error, f"statement {done + 1} of the script", self.address) from error
        except OSError as error:
            raise ServerError(
                f"the script on {self.address}: {error}",
                hint="the connection was lost; see the error log of the server",
            ) from error
        return done, rows

    def stream(
        self, sql: str, *, batch: int = 1000, times_as_text: bool = False
    ) -> tuple[tuple[str, ...], Iterator[Row]]:
        """Run one statement. Return its column names, and an iterator that reads at most `batch` rows at a time.

        If `times_as_text` is set, times are returned as the text that the server sends, with all digits. A session can
        have only one open stream.
        """
        if times_as_text:
            self._connection.read_times_as_text()
        cursor = self._connection.unbuffered_cursor()
        with self._errors(f"`{sql}`"):
            cursor.execute(sql)
        columns = tuple(str(column[0]) for column in cursor.description or ())
        return columns, self._rows_of(cursor, sql, batch)

    def _rows_of(self, cursor: UnbufferedCursor, sql: str, batch: int) -> Iterator[Row]:
        try:
            while rows := self._next_rows(cursor, sql, batch):
                yield from rows
        finally:
            # When the cursor is closed, it reads and discards the remaining rows, so the connection can be used again.
            with contextlib.suppress(self._connection.Failure, OSError), self._connection.exchange():
                cursor.close()

    def _next_rows(self, cursor: UnbufferedCursor, sql: str, batch: int) -> list[Row]:
        try:
            with self._errors(f"reading the rows of `{sql}`"):
                return list(cursor.fetchmany(batch))
        except UnicodeDecodeError as error:
            # A lone surrogate in ucs2, utf32 or MariaDB's utf8mb4, or a column of MySQL's type VECTOR, cannot be
            # decoded.
            raise ServerError(
                f"cannot read the rows of `{sql}` on {self.address}: a value is not text ({error.object[:20].hex()} …)",
                hint="select HEX(column) instead of a column with such values",
            ) from error

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Convert errors in a `with` block to a ServerError that contains the action and the server."""
        try:
            with self._connection.exchange():
                yield
        except self._connection.Failure as error:
            raise _classified(error, doing, self.address) from error
        except OSError as error:
            raise ServerError(
                f"{doing} on {self.address}: {error}", hint="the connection was lost; see the error log of the server"
            ) from error

    def understands(self, statement: str) -> bool:
        """Return whether the server's parser understands the statement, without running it.

        PREPARE first parses the statement. It fails with ER_PARSE_ERROR for an unknown statement, and with
        ER_UNSUPPORTED_PS for a known statement that cannot be prepared (refman 8.4, "PREPARE Statement").
        """
        try:
            with self._connection.exchange(), self._connection.cursor() as cursor:
                cursor.execute("PREPARE zsnapdb FROM %s", (statement,))
                cursor.execute("DEALLOCATE PREPARE zsnapdb")
        except self._connection.Failure as error:
            number = error.args[0] if error.args else 0
            if number == _SYNTAX:
                return False
            if number in _LOST or number == _NO_ROOM_TO_PREPARE:
                raise _classified(error, f"preparing `{statement}`", self.address) from error
        return True

    def value(self, sql: str) -> Any:
        """Return the first column of the first row."""
        return self.query(sql)[0][0]

    def is_same_connection(self) -> bool:
        """Return whether the connection is alive and is still the original connection."""
        try:
            return int(self.value("SELECT CONNECTION_ID()")) == self.connection_id
        except ServerError:
            return False

    def close(self) -> None:
        """Close the connection. The server then releases all locks of the connection."""
        try:
            self._connection.close()
        except self._connection.Failure:
            # The server has already closed the connection.
            return

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
