"""Builds the files of a release, and proves that a second build has the same bytes.

`PYTHONPATH=packaging python -m tools.release DIST` writes into DIST: the wheel, the source distribution, the client's
wheel, a list of all libraries with their versions (`sbom.json`, CycloneDX 1.5), and `SHA256SUMS` of these files. It
needs hatchling and the libraries of zsnapdb in the Python that runs it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = ("serve", "fleet")
"""The extras that the package for Debian and the image contain."""


class DifferentBytes(Exception):
    """Two builds of the same source differ."""


def build(folder: Path, source: Path = ROOT) -> dict[str, bytes]:
    """Build the wheel, the source distribution and the client's wheel into the folder. Return their bytes by name.

    Times in the archives are that of the newest commit (reproducible-builds.org, SOURCE_DATE_EPOCH).
    """
    log = ["git", "-C", str(source), "log", "-1", "--format=%ct"]
    epoch = subprocess.run(log, capture_output=True, text=True, check=False).stdout.strip() or "1767225600"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.absolute())]
    subprocess.run(words, cwd=source, env=environment, check=True, capture_output=True)
    client = source / "packaging" / "client"
    subprocess.run([*words, "-t", "wheel"], cwd=client, env=environment, check=True, capture_output=True)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def libraries(requirements: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return the installed distributions that the requirements need, directly or not, by normalized name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        for text in found[name].requires or ():
            needed = Requirement(text)
            extras = [{"extra": extra} for extra in (*wanted.extras, "")]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
                waiting.append(needed)
    return found


def bill_of_materials(version: str, requirements: Iterable[str]) -> dict[str, object]:
    """Return the libraries of a release as a CycloneDX document, without times or random numbers."""
    components = [
        {"type": "library", "name": name, "version": one.version, "purl": f"pkg:pypi/{name}@{one.version}"}
        for name, one in sorted(libraries(requirements).items())
    ]
    about = {"component": {"type": "application", "name": "zsnapdb", "version": version}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": about, "components": components}


def release(folder: Path, source: Path = ROOT) -> None:
    """Write the files of the release into the folder. DifferentBytes if a second build differs."""
    folder.mkdir(parents=True, exist_ok=True)
    made = build(folder, source)
    with tempfile.TemporaryDirectory() as again:
        if wrong := sorted(name for name, body in build(Path(again), source).items() if made.get(name) != body):
            raise DifferentBytes(f"a second build has other bytes: {', '.join(wrong)}")
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(need for extra in EXTRAS for need in project["optional-dependencies"][extra])]
    (version,) = re.findall(r'__version__ = "(.+)"', (source / "zsnapdb" / "__init__.py").read_text())
    bill = json.dumps(bill_of_materials(version, needed), indent=2) + "\n"
    (folder / "sbom.json").write_text(bill)
    made["sbom.json"] = bill.encode()
    sums = "".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in sorted(made.items()))
    (folder / "SHA256SUMS").write_text(sums)


def main() -> None:
    """Build a release into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Build the files of a release.")
    parser.add_argument("dist", type=Path)
    release(parser.parse_args().dist)


if __name__ == "__main__":
    main()
