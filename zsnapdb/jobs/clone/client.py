"""Opens the command-line client of MySQL or MariaDB on a clone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NoReturn

from zsnapdb.config import Settings
from zsnapdb.errors import PreflightError
from zsnapdb.jobs.clone import lifecycle
from zsnapdb.jobs.clone.catalogue import find
from zsnapdb.mysql import server_program
from zsnapdb.planning.family import family


def open_client(settings: Settings, name: str, words: Sequence[str]) -> NoReturn:
    """Replace this process by the client, logged in with the clone's credentials file; `words` are its arguments.

    ServerError if the clone's server does not run. PreflightError if this host has no client program.
    """
    lifecycle.login(settings, name)
    info = find(settings, name)
    beside = server_program.chosen(lifecycle.server_settings(settings, info), info.flavour, info.origin.version).parent
    path = os.pathsep.join((str(beside), str(beside.parent / "bin"), os.environ.get("PATH", os.defpath)))
    installed = (shutil.which(name, path=path) for name in family(info.flavour).client_programs)
    program = next(filter(None, installed), None)
    if program is None:
        raise PreflightError(
            f"no client program for {info.flavour} is installed", hint="install the client, or use --dsn or --env"
        )
    os.execv(program, [program, f"--defaults-file={info.client_file}", *words])  # noqa: S606 - no shell
