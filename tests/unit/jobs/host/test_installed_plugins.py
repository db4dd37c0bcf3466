"""The plugins that a server program of this host finds, and the findings about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from zsnapdb.base.domain_types import Flavour
from zsnapdb.base.errors import PreflightError
from zsnapdb.config.settings import ServerSettings
from zsnapdb.jobs.host import startup_requirements
from zsnapdb.planning.backup.fitness import Severity
from zsnapdb.planning.server_facts import Plugin, ServerPlugins

HELP = """\
  --blackhole[=name]  Enable or disable BLACKHOLE plugin. Possible values are
                      Enable or disable mysqlx_cache_cleaner plugin. Possible

plugin-dir                                                   FOLDER
plugin-load                                                  (No default value)
"""
SOURCE = ServerPlugins(plugins=(Plugin(name="ARCHIVE", kind="STORAGE ENGINE", library="ha_archive.so"),))
VERSION = "11.8.9-MariaDB"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A server program that names the folder `plugins` outside of its own, or the folder of its option --plugin-dir."""
    (tmp_path / "plugins").mkdir()
    binary = tmp_path / "home" / "bin" / "mariadbd"
    binary.parent.mkdir(parents=True)
    lines = (
        "#!/bin/sh",
        f"folder={tmp_path}/plugins/",
        'for word; do case "$word" in --plugin-dir=*) folder="${word#*=}";; esac; done',
        'cat <<END | sed "s|FOLDER|$folder|"',
    )
    binary.write_text("\n".join(lines) + f"\n{HELP}END\n")
    binary.chmod(0o755)
    return binary


@pytest.fixture
def settings(program: Path) -> Callable[..., ServerSettings]:
    return lambda *options: ServerSettings(binary=program, options=options, sandbox="off")


def test_installed_reads_folder_and_built_in_plugins(
    program: Path, settings: Callable[..., ServerSettings], tmp_path: Path
) -> None:
    (tmp_path / "plugins" / "ha_archive.so").touch()
    found = startup_requirements.installed_plugins(program, settings())
    assert found is not None
    assert found.folder == f"{tmp_path}/plugins/"
    assert found.libraries == {"ha_archive.so"}
    assert found.built_in == {"blackhole", "mysqlx_cache_cleaner"}
    assert found.is_shown


def test_folder_of_server_options_is_read(
    program: Path, settings: Callable[..., ServerSettings], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ha_archive.so").touch()
    own = settings(f"plugin-dir = {tmp_path}/other")
    assert startup_requirements.lacking_plugins(program, own, SOURCE) == ()
    assert startup_requirements.lacking_plugins(program, settings(), SOURCE) != ()


def test_folder_in_a_sandbox_must_be_shown(program: Path, tmp_path: Path) -> None:
    hidden = ServerSettings(binary=program, sandbox="required")
    shown = ServerSettings(binary=program, sandbox="required", sandbox_reads=(tmp_path / "plugins",))
    assert [
        found.is_shown for own in (hidden, shown) if (found := startup_requirements.installed_plugins(program, own))
    ] == [
        False,
        True,
    ]


def test_program_that_names_no_folder_gives_no_objection(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    assert startup_requirements.lacking_plugins(silent, ServerSettings(binary=silent), SOURCE) == ()


def test_judge_refuses_a_plan_and_warns_otherwise(
    program: Path, settings: Callable[..., ServerSettings], tmp_path: Path
) -> None:
    def judged(*, prevents: bool) -> list[Severity]:
        found = startup_requirements.judge_plugins(settings(), Flavour.MARIADB, VERSION, SOURCE, prevents=prevents)
        return [finding.severity for finding in found]

    assert judged(prevents=True) == [Severity.UNFIT]
    assert judged(prevents=False) == [Severity.WARNING]
    with pytest.raises(PreflightError, match=r"storage engine ARCHIVE \(ha_archive\.so\)"):
        startup_requirements.refuse_lacking_plugins(settings(), program, SOURCE)
    (tmp_path / "plugins" / "ha_archive.so").touch()
    assert judged(prevents=True) == [Severity.OK]
    startup_requirements.refuse_lacking_plugins(settings(), program, SOURCE)


def test_server_without_libraries_asks_no_program(settings: Callable[..., ServerSettings]) -> None:
    assert (
        startup_requirements.judge_plugins(settings(), Flavour.MARIADB, VERSION, ServerPlugins(), prevents=True) == []
    )
    assert startup_requirements.judge_plugins(settings(), Flavour.MARIADB, VERSION, None, prevents=True) == []


def test_plugin_of_information_schema_alone_prevents_nothing(settings: Callable[..., ServerSettings]) -> None:
    known = ServerPlugins(plugins=(Plugin(name="LOCALES", kind="INFORMATION SCHEMA", library="locales.so"),))
    (found,) = startup_requirements.judge_plugins(settings(), Flavour.MARIADB, VERSION, known, prevents=True)
    assert (found.severity, found.what) == (Severity.WARNING, "plugin tables")
