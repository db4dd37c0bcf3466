"""The start of a server on a copy."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr

from zsnapdb.errors import ServerError
from zsnapdb.mysql.processes import Launched, Limits
from zsnapdb.mysql.server import ServerProcess
from zsnapdb.mysql.session import Address


class _Looks:
    """Notes what lies in the folder when the server would start, and starts nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def launch(self, name: str, argv: Sequence[str], log: Path, limits: Limits, user: str) -> Launched:
        self.names = {path.name for path in self.folder.iterdir()}
        raise ServerError("not started")


def test_what_a_server_left_at_a_power_cut_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    """The pid in a lock file may be that of any process by now; MySQL would not start."""
    for name in ("server.sock", "server.sock.lock", "server.pid"):
        (tmp_path / name).write_text(f"{os.getpid()}\n")
    manager = _Looks(tmp_path)
    address = Address(user="root", socket=tmp_path / "server.sock")
    with pytest.raises(ServerError, match="not started"):
        ServerProcess(tmp_path).start(
            Path("/bin/true"),
            getpass.getuser(),
            address,
            SecretStr(""),
            timeout=1,
            manager=manager,
            limits=Limits(),
        )
    assert manager.names == {"error.log"}
