"""Builder of a package for Debian and its derivatives.

`PYTHONPATH=packaging python -m tools.debian_package DIST` writes DIST/zsnapdb_*.deb.

The program is in its own virtual environment in /usr/lib/zsnapdb, which uses the system's Python. One folder holds the
libraries for several minor releases of Python: names of compiled modules contain the release, and all other files are
equal. So one package works on several releases of Debian, and continues to work after an upgrade of the system.
"""

from __future__ import annotations

import argparse
import filecmp
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
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
SERIES = ("3.11", "3.12", "3.13")
"""The minor releases of Python that a package is for: those of Debian 12 and 13, and of Ubuntu 24.04 between them."""
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_|manylinux(2014|2010|1)_")
_OLD_NAMES = {"2014": 17, "2010": 12, "1": 5}
"""The minor release of glibc 2 that old names of platforms stand for (PEP 600)."""


class PackageError(Exception):
    """The package cannot be built."""


def next_series(series: str) -> str:
    """Return the minor release of Python after this one."""
    major, _, minor = series.partition(".")
    return f"{major}.{int(minor) + 1}"


def check_series(series: Sequence[str]) -> None:
    """Raise PackageError unless the releases follow one another: the package depends on a range."""
    if list(series[1:]) != [next_series(one) for one in series[:-1]]:
        raise PackageError(f"the Python releases leave a gap: {', '.join(series)}")


def install(packages: Path, wheel: Path, series: Sequence[str], more: Sequence[str]) -> None:
    """Install the wheel and its libraries for all Python releases into one folder. `more`: options of pip.

    The later releases get the versions of the first one.

    Raises:
        PackageError: a file that is no compiled module differs between the releases.
    """
    # Include the dependencies of serve and fleet, whose units are in the package.
    requirement = f"{wheel}[serve,fleet]"
    packages.parent.mkdir(parents=True, exist_ok=True)
    for one in series:
        exact = [f"--constraint={_constraints(packages)}"] if packages.exists() else []
        with tempfile.TemporaryDirectory(dir=packages.parent) as folder:
            target = ["--target", folder, "--python-version", one, "--only-binary=:all:"]
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *target, *exact, *more]
            subprocess.run([*command, requirement], check=True)
            for leftover in ("bin", "share"):
                shutil.rmtree(Path(folder, leftover), ignore_errors=True)
            merge(Path(folder), packages)
    packages.with_name("constraints.txt").unlink(missing_ok=True)


def merge(source: Path, packages: Path) -> None:
    """Add the files of a folder that are missing in the other one. PackageError if a file has other bytes there.

    Metadata of distributions may differ: it names the wheel that was chosen. The first one stays.
    """
    for file in sorted(source.rglob("*")):
        if file.is_dir():
            continue
        name = file.relative_to(source)
        present = packages / name
        if not present.exists():
            present.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, present)
        elif not name.parts[0].endswith(".dist-info") and not filecmp.cmp(file, present, shallow=False):
            raise PackageError(f"{name} differs between the Python releases: build a package for each, with --for")


def _constraints(packages: Path) -> Path:
    """Write the versions of the installed libraries for pip, and return the file."""
    names = (folder.name.removesuffix(".dist-info") for folder in packages.glob("*.dist-info"))
    pairs = (name.rpartition("-") for name in sorted(names))
    file = packages.with_name("constraints.txt")
    _write(file, "".join(f"{name}=={version}\n" for name, _, version in pairs if name != "zsnapdb"))
    return file


def needed_glibc(wheels: Iterable[str]) -> int:
    """Return the minor release of glibc 2 that the wheels need, from the texts of their WHEEL files.

    A wheel can have several platform tags, and works with the oldest of them.
    """
    found = []
    for text in wheels:
        tags = [line for line in text.splitlines() if line.startswith("Tag: ")]
        minors = [int(new or _OLD_NAMES[old]) for tag in tags for new, old in _MANYLINUX.findall(tag)]
        found += [min(minors)] if minors else []
    return max(found, default=17)


def stage(tree: Path, wheel: Path, series: Sequence[str] = SERIES, *, more: Sequence[str] = ()) -> None:
    """Fill an empty folder with the files of the package, except the control files. `more`: options of pip."""
    check_series(series)
    packages = tree / HOME / "lib" / "site-packages"
    install(packages, wheel, series, more)
    for one in series:
        link = tree / HOME / "lib" / f"python{one}" / "site-packages"
        link.parent.mkdir()
        link.symlink_to("../site-packages")
    _write(tree / HOME / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    (tree / HOME / "bin").mkdir()
    (tree / HOME / "bin" / "python3").symlink_to("/usr/bin/python3")
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


def control(tree: Path, version: str, architecture: str, series: Sequence[str] = SERIES) -> None:
    """Write the control files of the package into its folder (deb-control(5))."""
    wheels = (tree / HOME / "lib" / "site-packages").glob("*.dist-info/WHEEL")
    size = sum(file.stat().st_size for file in tree.rglob("*") if file.is_file() and not file.is_symlink()) // 1024
    values = {
        "VERSION": version,
        "ARCHITECTURE": architecture,
        "SIZE": str(size),
        "NEXT_PYTHON": next_series(series[-1]),
        "PYTHON": series[0],
        "GLIBC": f"2.{needed_glibc(file.read_text(encoding='utf-8') for file in wheels)}",
    }
    text = _recipe("control.in")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    _write(tree / "DEBIAN/control", text)
    _write(tree / "DEBIAN/conffiles", _recipe("conffiles"))
    for name in _SCRIPTS:
        _write(tree / "DEBIAN" / name, _recipe(name), 0o755)


def build(folder: Path, series: Sequence[str] = SERIES) -> Path:
    """Build the package into the folder and return it. Needs pip, hatchling, dpkg-deb and a package index."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    # The folder may contain the wheel of a release, whose bytes must stay.
    with tempfile.TemporaryDirectory() as built:
        make = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built]
        subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (wheel,) = Path(built).glob("zsnapdb-*.whl")
        stage(tree, wheel, series)
    version = wheel.name.split("-")[1]
    architecture_command = ["dpkg", "--print-architecture"]
    architecture = subprocess.run(architecture_command, check=True, capture_output=True, text=True).stdout.strip()
    control(tree, version, architecture, series)
    package = folder / f"zsnapdb_{version}_{architecture}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)], check=True)
    shutil.rmtree(tree)
    add_checksum(package)
    return package


def add_checksum(package: Path) -> None:
    """Add the package to the SHA256SUMS of the release in its folder, if there is one."""
    file = package.with_name("SHA256SUMS")
    if file.exists():
        others = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.endswith(package.name)]
        own = f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}"
        _write(file, "".join(f"{line}\n" for line in (*others, own)))


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
    parser.add_argument(
        "--for", dest="series", nargs="+", metavar="X.Y", default=SERIES, help="the Python releases that it is for"
    )
    given = parser.parse_args()
    print(build(given.folder, given.series))


if __name__ == "__main__":
    main()
