"""The only account of a clone: its password, its credentials file, the SQL that makes it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from zsnapdb.mysql import accounts, server
from zsnapdb.planning.clone.contract import ACCOUNT, lock_accounts_sql
from zsnapdb.planning.server_copy.identity import is_loopback
from zsnapdb.planning.server_copy.origin import Origin
from zsnapdb.server_files import UnsafeFileError, read_text

CLIENT_HOME = Path(__file__).parent / "client_home"
"""The folder whose my.cnf names the account of every clone.

Clients take host, port, socket and password from environment variables, but not the account (refman 8.4, "Environment
Variables"). They read my.cnf in the folder that MYSQL_HOME names (seen with MySQL 9.7, MariaDB 10.11 and 11.8).
"""


@dataclass(frozen=True)
class Login:
    """How a client reaches a clone."""

    host: str
    port: int
    socket: Path
    user: str
    password: SecretStr

    @property
    def dsn(self) -> str:
        """A URL that contains the password. Show it only to the person who requests it; never log it."""
        return f"mysql://{self.user}:{quote(self.password.get_secret_value(), safe='')}@{self.host}:{self.port}/"


def write(file: Path, password: SecretStr, host: str, port: int, user: str) -> None:
    """Write the credentials file, which only the server's account `user` can read."""
    server.write_private(file, text(password, host, port), user)


def text(password: SecretStr, host: str, port: int) -> str:
    """Return the text of a credentials file: an option file for clients."""
    return f"[client]\nuser={ACCOUNT}\npassword={password.get_secret_value()}\nhost={host}\nport={port}\n"


def read(file: Path) -> SecretStr | None:
    """Return the password in the credentials file; None if the file is gone or contains no password."""
    with contextlib.suppress(OSError, UnsafeFileError):
        for line in read_text(file).splitlines():
            key, separator, value = line.partition("=")
            if separator and key.strip() == "password":
                return SecretStr(value)
    return None


def account_sql(origin: Origin, password: SecretStr, bind_address: str, *, lock: bool) -> str:
    """Return the statements that make the clone's account and, with `lock`, lock all other accounts.

    They are not written to the clone's binlog, so that its GTIDs stay those of the source.
    """
    hosts = ("localhost", "127.0.0.1", *(() if is_loopback(bind_address) else ("%",)))
    return accounts.owner_sql(ACCOUNT, hosts, password, lock_accounts_sql(origin.flavour) if lock else ())
