"""The start of a server on a copy."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import SecretStr

from zsnapdb.base.errors import ServerError
from zsnapdb.mysql.process.process_managers import Launched, Limits
from zsnapdb.mysql.process.server import ServerProcess, make_private_folder
from zsnapdb.mysql.session import Address
from zsnapdb.planning.server_copy.sandbox import Sandbox


class _Looks:
    """Notes what lies in the folder when the server would start, and starts nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def launch(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        limits: Limits,
        user: str,
        sandbox: Sandbox | None,
        zone: str | None = None,
    ) -> Launched:
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
            sandbox=None,
        )
    assert manager.names == {"error.log"}


@pytest.mark.parametrize("kind", ["link", "pipe", "second name"])
def test_a_log_that_the_servers_account_planted_is_made_anew(kind: str, tmp_path: Path) -> None:
    victim, log = tmp_path / "victim", tmp_path / "private" / "error.log"
    log.parent.mkdir()
    victim.write_text("root's")
    if kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to(victim) if kind == "link" else log.hardlink_to(victim)
    with pytest.raises(ServerError, match="not started"):
        ServerProcess(log.parent).start(
            Path("/bin/true"),
            getpass.getuser(),
            Address(user="root", socket=log.with_name("server.sock")),
            SecretStr(""),
            timeout=1,
            manager=_Looks(log.parent),
            limits=Limits(),
            sandbox=None,
        )
    assert log.is_file()
    assert not log.is_symlink()
    assert not log.samefile(victim)
    assert victim.read_text() == "root's"


def test_a_private_folder_that_the_servers_account_linked_is_made_anew(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / ".zsnapdb"
    victim.mkdir()
    folder.symlink_to(victim)
    make_private_folder(folder, getpass.getuser())
    assert (folder / "tmp").is_dir()
    assert not folder.is_symlink()
    assert list(victim.iterdir()) == []
