"""The program for a server's files is that of their series, and one that does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.mysql.process import process_managers, programs, server

VERSIONS = {"/opt/old/mariadbd": "10.11.14-MariaDB", "/usr/sbin/mariadbd": "11.8.6-MariaDB"}
BOTH = ServerSettings(binary=Path("/usr/sbin/mariadbd"), binaries={"10.11": Path("/opt/old/mariadbd")})


@pytest.fixture(autouse=True)
def program_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_binary", lambda path, flavour: path or Path("/usr/sbin/mariadbd"))
    monkeypatch.setattr(process_managers, "version_of", lambda binary: VERSIONS[str(binary)])


@pytest.mark.parametrize(
    ("recorded", "path"), [("10.11.9-MariaDB", "/opt/old/mariadbd"), ("11.8.3-MariaDB", "/usr/sbin/mariadbd")]
)
def test_each_series_has_its_program(recorded: str, path: str) -> None:
    assert str(programs.fitting_program(BOTH, Flavour.MARIADB, recorded).path) == path


def test_a_newer_program_on_older_files_is_refused_and_both_ways_to_name_the_old_one_are_said() -> None:
    with pytest.raises(PreflightError, match="another series") as refused:
        programs.fitting_program(ServerSettings(), Flavour.MARIADB, "10.11.9-MariaDB")
    assert "--binary PATH" in refused.value.hint
    assert 'binaries = {"10.11" = "PATH"}' in refused.value.hint


def test_a_program_given_for_one_command_is_used_for_every_series() -> None:
    chosen = BOTH.model_copy(update={"binary": Path("/opt/old/mariadbd"), "binaries": {}})
    with pytest.raises(PreflightError, match="another series"):
        programs.fitting_program(chosen, Flavour.MARIADB, "11.8.3-MariaDB")
