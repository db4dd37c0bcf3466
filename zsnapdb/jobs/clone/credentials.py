"""The accounts of a clone: their passwords and files, and the SQL that creates them."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from zsnapdb.base import safe_open
from zsnapdb.base.program_start import NO_LOGIN_PATHS
from zsnapdb.base.safe_open import UnsafeFileError, read_text
from zsnapdb.mysql import accounts
from zsnapdb.mysql.process import server
from zsnapdb.planning.clone.isolation import ACCOUNT, INTERNAL_ACCOUNT, lock_accounts_sql
from zsnapdb.planning.server_copy.copy_options import is_loopback
from zsnapdb.planning.server_copy.source_facts import SourceServer
from zsnapdb.planning.sql_quoting import only_below

CLIENT_HOME = Path(__file__).parent / "client_home"
"""The folder with a my.cnf file that contains the account name of all clones' users.

Clients take host, port, socket and password from environment variables, but not the account (refman 8.4, "Environment
Variables"). Clients also read the file my.cnf in the folder that MYSQL_HOME names (observed with MySQL 9.7, MariaDB
10.11 and 11.8).
"""
INTERNAL_FILE = "internal.cnf"
"""The name of the file that contains the internal account's password, in the private folder of a clone."""


@dataclass(frozen=True)
class Login:
    """The login of a client: host, port, socket, user and password. The server listens on `bind_address`."""

    host: str
    port: int
    socket: Path
    user: str
    password: SecretStr
    bind_address: str = "127.0.0.1"

    @property
    def address(self) -> str:
        """The address at which clients reach the clone."""
        return address_of(self.bind_address, self.port)

    @property
    def local_only(self) -> bool:
        """Whether only clients on this host can reach the clone."""
        return is_loopback(self.bind_address)

    @property
    def dsn(self) -> str:
        """A URL that contains the password. Show this URL only to the user who requests it, and never log it."""
        return f"mysql://{self.user}:{quote(self.password.get_secret_value(), safe='')}@{self.host}:{self.port}/"

    @property
    def option_file(self) -> str:
        """The text of an option file for clients.

        With this file, a client program of the server's flavour can connect to this clone, but to no other server.
        """
        return text(self.password, self.host, self.port) + only_below(str(_mount_of(self.socket)))

    def environment(self) -> dict[str, str]:
        """Return the environment variables for clients on this host, including the password of the clone.

        These variables also disable login paths, because a login path in the user's ~/.mylogin.cnf would override all
        variables and option files.
        """
        return {
            **NO_LOGIN_PATHS,
            "MYSQL_HOST": self.host,
            "MYSQL_TCP_PORT": str(self.port),
            "MYSQL_UNIX_PORT": str(self.socket),
            "MYSQL_HOME": str(CLIENT_HOME),
            "MYSQL_PWD": self.password.get_secret_value(),
            "DATABASE_URL": self.dsn,
        }


def client_host(bind_address: str) -> str:
    """Return the address at which a client on this host reaches a server that listens on `bind_address`."""
    return "127.0.0.1" if bind_address in ("*", "::") or bind_address.startswith("0.") else bind_address


def address_of(bind_address: str, port: int) -> str:
    """Return HOST:PORT for clients of the server. If it listens on all interfaces, HOST is the name of this host."""
    is_any = bind_address in ("*", "::") or bind_address.startswith("0.")
    host = platform.node() if is_any else bind_address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write(file: Path, password: SecretStr, host: str, port: int, user: str) -> None:
    """Write the credentials file, which only the server's account `user` can read.

    With this file, a client program of the server's flavour can connect to clones, but to no other servers.
    """
    server.write_private(file, text(password, host, port) + only_below(str(_mount_of(file).parent)), user)


def text(password: SecretStr, host: str, port: int) -> str:
    """Return the text of an option file for clients of a clone."""
    return f"[client]\nuser={ACCOUNT}\npassword={password.get_secret_value()}\nhost={host}\nport={port}\n"


def text_for_clones(login: Login) -> str:
    """Return the text of an option file that stays valid after resets.

    With this file, a client can connect to clones, but to no other servers.
    """
    return text(login.password, login.host, login.port) + only_below(str(_mount_of(login.socket).parent))


def _mount_of(file: Path) -> Path:
    return file.parent.parent


def read(file: Path) -> SecretStr | None:
    """Return the password in the credentials file; None if the file does not exist or contains no password."""
    with contextlib.suppress(OSError, UnsafeFileError):
        for line in read_text(file).splitlines():
            key, separator, value = line.partition("=")
            if separator and key.strip() == "password":
                return SecretStr(value)
    return None


def write_internal(file: Path, password: SecretStr) -> None:
    """Write the password of the internal account to a file that only root can read."""
    safe_open.write_text(file, f"password={password.get_secret_value()}\n", None)


def internal_account_sql(origin: SourceServer, password: SecretStr, *, lock: bool) -> str:
    """Return the SQL statements that create the internal account. If `lock` is set, they also lock all other accounts.

    The statements are not written to the clone's binlog, so that its GTIDs stay those of the source.
    """
    before = lock_accounts_sql(origin.flavour) if lock else ()
    return accounts.owner_sql(INTERNAL_ACCOUNT, ("localhost",), password, before)


def hosts_of_users(bind_address: str) -> tuple[str, ...]:
    """Return the hosts from which the users of a clone may log in."""
    return ("localhost", "127.0.0.1", *(() if is_loopback(bind_address) else ("%",)))
