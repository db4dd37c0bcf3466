"""Passes account and password to a client program in an option file, because everybody can read arguments."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from zsnapdb.mysql import server
from zsnapdb.mysql.session import Address
from zsnapdb.planning.quoting import option_value


def client_text(address: Address, password: SecretStr) -> str:
    """Return the text of an option file for a client."""
    lines = ["[client]", f"user={option_value(address.user)}", f"password={option_value(password.get_secret_value())}"]
    lines += (
        [f"socket={option_value(str(address.socket))}"]
        if address.socket
        else [f"host={option_value(address.host)}", f"port={address.port}"]
    )
    return "\n".join([*lines, ""])


def client_file(path: Path, address: Address, password: SecretStr, user: str) -> Path:
    """Write an option file for a client, readable only by `user` and root, and return its path."""
    server.write_private(path, client_text(address, password), user)
    return path
