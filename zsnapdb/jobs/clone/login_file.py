"""A file with the login of a clone that its owner can read: the option file of a client.

The credentials file of a clone lies where its server can replace it, and only the server's account can read it.
"""

from __future__ import annotations

from pathlib import Path

from zsnapdb.base.server_files import Owner, write_text
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.private_folder import make_passable
from zsnapdb.jobs.clone import credentials, lifecycle

FOLDER = Path("/run/zsnapdb-clone")
"""Others may pass through it to files that are theirs, and cannot list it."""


def write_login(settings: Settings, host: Host, name: str, uid: int, gid: int, folder: Path = FOLDER) -> Path:
    """Write the login of a running clone to a file that this account alone can read. Return the file.

    ServerError if the clone's server does not run. PreflightError if the folder cannot be made.
    """
    login = lifecycle.login(settings, host, name)
    make_passable(folder)
    file = folder / f"{name}.cnf"
    write_text(file, credentials.text_for_clones(login), Owner(uid, gid), 0o400)
    return file


def forget_login(name: str, folder: Path = FOLDER) -> None:
    """Remove the file with the login of a clone, if there is one."""
    (folder / f"{name}.cnf").unlink(missing_ok=True)
