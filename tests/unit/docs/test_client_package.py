"""The package `zsnapdb-client`: small, complete, and equal to its part of the full package."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from tools import release
from tools.references.pages import ROOT

from zsnapdb import __version__

CLIENT = ROOT / "packaging" / "client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FULL = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MOST_BYTES = 40 << 20


def build(source: Path, folder: Path) -> Path:
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CLIENT, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the wheel and the libraries that it declares, and no others."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    words = ["--python", str(python), "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    site = site_packages(python)
    for library in release.libraries(PROJECT["dependencies"]).values():
        for name in {file.parts[0] for file in library.files or () if file.parts[0] != ".."}:
            if not (site / name).exists():
                (site / name).symlink_to(str(library.locate_file(name)))
    return python


def site_packages(python: Path) -> Path:
    (site,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return site


def test_client_works_with_only_its_declared_libraries(python: Path) -> None:
    code = """
import json, sys
from zsnapdb.client.clones import LocalClones
from zsnapdb.client.http import AsyncClient, Client
with Client("http://127.0.0.1:1", "zsnapdb_0") as clones:
    print(json.dumps([repr(clones), sys.modules["zsnapdb"].__file__]))
"""
    ran = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True, cwd="/")
    shown, file = json.loads(ran.stdout)
    assert shown == "Client('http://127.0.0.1:1/api/v1')"
    assert Path(file).parents[1] == site_packages(python)


def test_client_with_its_libraries_is_small(python: Path) -> None:
    site = site_packages(python)
    folders = [entry.resolve() for entry in site.iterdir()]
    files = {file for folder in folders for file in (folder.rglob("*") if folder.is_dir() else [folder])}
    assert sum(file.stat().st_size for file in files if file.is_file()) < MOST_BYTES


def test_client_contains_only_files_of_the_full_package(wheel: Path, tmp_path: Path) -> None:
    """Both packages can be installed in one environment in any order: neither changes a file of the other."""
    full = zipfile.ZipFile(build(ROOT, tmp_path))
    client = zipfile.ZipFile(wheel)
    names = [name for name in client.namelist() if ".dist-info/" not in name]
    assert "zsnapdb/client/http.py" in names
    assert [name for name in names if client.read(name) != full.read(name)] == []


def test_both_packages_have_the_same_version_and_bounds(wheel: Path) -> None:
    text = zipfile.ZipFile(wheel).read(f"zsnapdb_client-{__version__}.dist-info/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in text
    extras = FULL["optional-dependencies"]
    assert set(PROJECT["dependencies"]) <= {*FULL["dependencies"], *extras["client"]}
    assert PROJECT["optional-dependencies"] == {"pytest": extras["pytest"]}
    assert PROJECT["entry-points"] == FULL["entry-points"]
    assert PROJECT["requires-python"] == FULL["requires-python"]
