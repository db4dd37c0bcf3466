"""Opens the command-line client of MySQL or MariaDB on a clone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NoReturn

from zsnapdb.base import program_start
from zsnapdb.base.errors import PreflightError
from zsnapdb.base.program_start import search_path
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import lifecycle
from zsnapdb.jobs.clone.catalogue import find
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.mysql.process import server_program
from zsnapdb.planning.clone.client_arguments import client_arguments
from zsnapdb.planning.family import family


def open_client(settings: Settings, host: Host, name: str, login: Login, words: Sequence[str]) -> NoReturn:
    """Replace this process by the client, logged in to the clone with its `login`; `words` are its arguments.

    The client gets its option file as an open file. The credentials file of the clone lies where its server can replace
    it, for example by one that names a plugin, which the client would load as root.
    PreflightError if this host has no client program.
    """
    info = find(settings, host, name)
    beside = server_program.chosen(lifecycle.server_settings(settings, info), info.flavour, info.origin.version).parent
    path = os.pathsep.join((str(beside), str(beside.parent / "bin"), search_path()))
    installed = (shutil.which(name, path=path) for name in family(info.flavour).client_programs)
    program = next(filter(None, installed), None)
    if program is None:
        raise PreflightError(
            f"no client program for {info.flavour} is installed", hint="install the client, or use --dsn or --env"
        )
    options = os.memfd_create("client.cnf", 0)
    # Clients ignore an option file that everybody may write.
    os.fchmod(options, 0o600)
    os.write(options, login.option_file.encode())
    program_start.become(client_arguments(program, f"/proc/self/fd/{options}", login.host, login.port, words))
