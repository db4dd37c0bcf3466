"""Choice of the server program for files of a given version; programs that do not fit are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.mysql.process import processes, server
from zsnapdb.planning.server_copy.version_compatibility import objection_to, series_of


@dataclass(frozen=True)
class ServerProgram:
    """A server program of this host and the version that it prints."""

    path: Path
    version: str


def choose_program(settings: ServerSettings, flavour: Flavour, recorded: str) -> Path:
    """Return the program for files of version `recorded`, without checking that it fits.

    The order is: the program for their series, `server.binary`, an installed one. Raise PreflightError if there is
    none.
    """
    return server.find_binary(settings.binaries.get(series_of(recorded), settings.binary), flavour)


def fitting(settings: ServerSettings, flavour: Flavour, recorded: str) -> ServerProgram:
    """Return the program for files of version `recorded`. Raise PreflightError if none exists or it does not fit."""
    path = choose_program(settings, flavour, recorded)
    version = processes.version_of(path)
    objection = objection_to(flavour, recorded, version)
    if objection is not None:
        raise PreflightError(
            f"{path} cannot be started on these files: {objection}",
            hint=(
                f"keep a server program of series {series_of(recorded)} on this host, and name it: --binary PATH, or"
                f' binaries = {{"{series_of(recorded)}" = "PATH"}} under server of the instance'
            ),
        )
    return ServerProgram(path, version)
