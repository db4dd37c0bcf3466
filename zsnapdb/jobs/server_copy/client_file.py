"""Passes account and password to a client program in an option file, because everybody can read arguments."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import SecretStr

from zsnapdb.mysql.session import Address
from zsnapdb.mysql.tls import client_options
from zsnapdb.planning.sql_text import option_value


def client_text(address: Address, password: SecretStr) -> str:
    """Return the text of an option file for a client."""
    lines = ["[client]", f"user={option_value(address.user)}", f"password={option_value(password.get_secret_value())}"]
    lines += (
        [f"socket={option_value(str(address.socket))}"]
        if address.socket
        else [f"host={option_value(address.host)}", f"port={address.port}"]
    )
    lines += () if address.socket else client_options(address.tls, address.host)
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def client_file(address: Address, password: SecretStr, more: str = "") -> Iterator[Path]:
    """Write an option file for a client, with the lines `more` at its end, for the block; it is gone afterwards.

    It lies in a new folder that only this account enters. In a folder of the server's account that account could
    replace it by one that names a plugin (refman 8.4, "plugin_dir"), which the client then loads as root.
    """
    with tempfile.TemporaryDirectory(prefix="zsnapdb-client-") as folder:
        file = Path(folder, "client.cnf")
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(client_text(address, password) + more)
        yield file
