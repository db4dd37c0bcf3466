"""A hint that installs a library works for the Python that zsnapdb has, with its own pip or with that of the system."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from zsnapdb.base.errors import how_to_install, missing_library

ROOT = Path(__file__).parents[2]
OWN = "tests/unit/test_extras.py"
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def printed(hint: str) -> list[str]:
    """Return the command of a hint."""
    found = re.search("`(.*)`", hint)
    assert found is not None
    return shlex.split(found[1])


def test_the_pip_of_the_system_installs_into_a_python_that_has_none_as_the_hint_says(tmp_path: Path) -> None:
    own = tmp_path / "own"
    venv.create(own, symlinks=True)
    command = printed(how_to_install("wanted", python=str(own / "bin" / "python"), has_pip=False))
    assert command[0] == "python3"
    found = ["--quiet", "--no-index", f"--find-links={wheel_of(tmp_path).parent}"]
    subprocess.run([sys.executable, *command[1:], *found], check=True)
    subprocess.run([own / "bin" / "python", "-c", "import wanted"], check=True)


def wheel_of(folder: Path) -> Path:
    """Return a wheel with a module `wanted`."""
    wheel = folder / "wanted-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("wanted.py", "")
        archive.writestr("wanted-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: wanted\nVersion: 1\n")
        archive.writestr("wanted-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("wanted-1.dist-info/RECORD", "")
    return wheel


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_error_names_all_packages_of_the_missing_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [f"{need}; extra == '{name}'" for name, needs in EXTRAS.items() for need in needs]
    monkeypatch.setattr(metadata, "requires", lambda name: ["boto3>=1.36", *declared] if name == "zsnapdb" else [])
    error = missing_library(extra, ImportError("no", name="absent"))
    assert "absent" in str(error)
    command = printed(str(error.hint))
    assert command[command.index("install") + 1 :] == EXTRAS[extra]


def test_error_of_a_checkout_names_the_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_installed)
    assert printed(str(missing_library("fleet", ImportError("no", name="temporalio")).hint))[-1] == "temporalio"


def test_no_text_installs_zsnapdb_by_its_name_from_an_index() -> None:
    """The name is in no index: whoever registered it could run code on the hosts of those who read such a line."""
    places = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "Dockerfile")
    folders = ("zsnapdb", "docs", "configs", "hooks", "packaging", "tests")
    written = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    named = re.compile(r"(pip3?|pipx|uv)\b[^\n`]*\binstall\b[^\n`]*[\s'\"]zsnapdb(\[|[\s'\"`]|$)|\"zsnapdb\[")
    found = [
        f"{path}: {line.strip()}"
        for path in (*(ROOT / name for name in places), *written)
        if path.suffix in ("", ".md", ".py", ".toml", ".html", ".1", ".yml", ".service") and path.is_file()
        if path != ROOT / OWN
        for line in path.read_text(errors="replace").splitlines()
        if named.search(line)
    ]
    assert found == []
