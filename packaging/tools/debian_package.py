"""Builder of a package for Debian and its derivatives.

`PYTHONPATH=packaging python -m tools.debian_package DIST` writes DIST/zsnapdb_*.deb.

The program is in its own virtual environment in /usr/lib/zsnapdb, which uses the system's Python. Its libraries are
compiled for one minor release of Python, so the package depends on exactly that one.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "packaging" / "debian"
HOME = Path("usr/lib/zsnapdb")
_COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/zsnapdb",
    "zsh": "usr/share/zsh/vendor-completions/_zsnapdb",
    "fish": "usr/share/fish/vendor_completions.d/zsnapdb.fish",
}
_SCRIPTS = ("postinst", "prerm", "postrm")
_VERSION = "import platform; print(*platform.python_version_tuple()[:2], sep='.')"


def python_series(python: str) -> str:
    """Return the minor release of a Python, such as 3.13."""
    return subprocess.run([python, "-c", _VERSION], check=True, capture_output=True, text=True).stdout.strip()


def stage(tree: Path, wheel: Path, python: str, *, more: Sequence[str] = ()) -> None:
    """Fill an empty folder with the files of the package, except the control files. `more`: options of pip."""
    series = python_series(python)
    packages = tree / HOME / "lib" / f"python{series}" / "site-packages"
    # Include the dependencies of serve and fleet, whose units are in the package.
    requirement = f"{wheel}[serve,fleet]"
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(packages), *more, requirement]
    subprocess.run(install, check=True)
    for leftover in ("bin", "share"):
        shutil.rmtree(packages / leftover, ignore_errors=True)
    _write(tree / HOME / "pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {series}\n")
    (tree / HOME / "bin").mkdir()
    (tree / HOME / "bin" / "python3").symlink_to(f"/usr/bin/python{series}")
    for program, module in (("zsnapdb", "app"), ("zsnapdb-clone", "delegated")):
        launcher = f"#!/{HOME}/bin/python3\nfrom zsnapdb.cli.{module} import main\n\nmain()\n"
        _write(tree / "usr/bin" / program, launcher, 0o755)
    shipped = packages / "zsnapdb" / "shipped"
    for unit in sorted((shipped / "configs" / "systemd").iterdir()):
        _write(tree / "usr/lib/systemd/system" / unit.name, unit.read_text(encoding="utf-8"))
    for manual in sorted((ROOT / "docs" / "man").iterdir()):
        compressed = gzip.compress(manual.read_bytes(), mtime=0)
        _write_bytes(tree / "usr/share/man/man1" / f"{manual.name}.gz", compressed)
    for shell, file in _COMPLETIONS.items():
        _write(tree / file, _completion(shell))
    _write(tree / "usr/lib/tmpfiles.d/zsnapdb.conf", _recipe("tmpfiles.conf"))
    _write(tree / "etc/zsnapdb/zsnapdb.toml", _recipe("zsnapdb.toml"), 0o640)
    _write(tree / "usr/share/doc/zsnapdb/copyright", (ROOT / "LICENSE").read_text(encoding="utf-8"))


def control(tree: Path, version: str, architecture: str, series: str) -> None:
    """Write the control files of the package into its folder (deb-control(5))."""
    major, _, minor = series.partition(".")
    size = sum(file.stat().st_size for file in tree.rglob("*") if file.is_file() and not file.is_symlink()) // 1024
    values = {
        # The next release of the system has another Python, and needs a package built for it.
        "VERSION": f"{version}+py{series}",
        "ARCHITECTURE": architecture,
        "SIZE": str(size),
        "NEXT_PYTHON": f"{major}.{int(minor) + 1}",
        "PYTHON": series,
    }
    text = _recipe("control.in")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    _write(tree / "DEBIAN/control", text)
    _write(tree / "DEBIAN/conffiles", _recipe("conffiles"))
    for name in _SCRIPTS:
        _write(tree / "DEBIAN" / name, _recipe(name), 0o755)


def build(folder: Path, python: str) -> Path:
    """Build the package into the folder and return it. Needs pip, hatchling, dpkg-deb and a package index."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    make = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wheel = max(folder.glob("zsnapdb-*.whl"), key=lambda file: file.stat().st_mtime)
    stage(tree, wheel, python)
    version, series = wheel.name.split("-")[1], python_series(python)
    architecture_command = ["dpkg", "--print-architecture"]
    architecture = subprocess.run(architecture_command, check=True, capture_output=True, text=True).stdout.strip()
    control(tree, version, architecture, series)
    package = folder / f"zsnapdb_{version}+py{series}_{architecture}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)], check=True)
    shutil.rmtree(tree)
    return package


def _completion(shell: str) -> str:
    argv = [sys.executable, "-m", "zsnapdb", "completion", shell]
    return subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _recipe(name: str) -> str:
    return (RECIPE / name).read_text(encoding="utf-8")


def _write(file: Path, text: str, mode: int = 0o644) -> None:
    _write_bytes(file, text.encode(), mode)


def _write_bytes(file: Path, content: bytes, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def main() -> None:
    """Build the package that the command line describes, and print its path."""
    parser = argparse.ArgumentParser(description="Build zsnapdb_*.deb.")
    parser.add_argument("folder", type=Path, help="where the package is written")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python of the system that the package is for")
    given = parser.parse_args()
    print(build(given.folder, given.python))


if __name__ == "__main__":
    main()
