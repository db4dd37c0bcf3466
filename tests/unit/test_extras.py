"""A hint that installs a library works for the Python that zsnapdb has, with its own pip or with that of the system."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from zsnapdb.base.errors import how_to_install, missing_library


def printed(hint: str) -> list[str]:
    """Return the command of a hint."""
    found = re.search("`(.*)`", hint)
    assert found is not None
    return shlex.split(found[1])


def test_the_pip_of_the_system_installs_into_a_python_that_has_none_as_the_hint_says(tmp_path: Path) -> None:
    own = tmp_path / "own"
    venv.create(own, symlinks=True)
    command = printed(how_to_install("wanted", str(own / "bin" / "python"), has_pip=False))
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


def test_an_error_names_the_library_and_the_extra_that_brings_it() -> None:
    error = missing_library("fleet", ImportError("no", name="temporalio"))
    assert "temporalio" in str(error)
    assert printed(str(error.hint))[-2:] == ["install", "zsnapdb[fleet]"]
