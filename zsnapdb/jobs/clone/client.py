"""Opens the server's own command-line client on a clone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NoReturn

from zsnapdb.config import Settings
from zsnapdb.errors import PreflightError
from zsnapdb.jobs.clone import lifecycle
from zsnapdb.jobs.clone.catalogue import find
from zsnapdb.mysql import server
from zsnapdb.planning.family import family


def open_client(settings: Settings, name: str, words: Sequence[str]) -> NoReturn:
    """Become the client, logged in by the clone's credentials file; `words` are its arguments.

    ServerError if the clone does not run.
    """
    lifecycle.login(settings, name)
    info = find(settings, name)
    beside = server.find_binary(lifecycle.server_settings(settings, info).binary, info.flavour).parent
    path = os.pathsep.join((str(beside), str(beside.parent / "bin"), os.environ.get("PATH", os.defpath)))
    program = next(
        (found for known in family(info.flavour).client_programs if (found := shutil.which(known, path=path))), None
    )
    if program is None:
        raise PreflightError(f"no client for {info.flavour} was found", hint="install it, or use --dsn or --env")
    os.execv(program, [program, f"--defaults-file={info.client_file}", *words])  # noqa: S606 - no shell is wanted
