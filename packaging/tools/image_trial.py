"""Test of the Dockerfile: runs its steps in bare Debian roots, and tries the result.

`python3 packaging/tools/image_trial.py`, as root, on a machine with debootstrap and a mirror. A bare root replaces the
Debian image that the Dockerfile starts with.
"""

from __future__ import annotations

import glob
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.lab import host  # noqa: E402
from tools import package_trial  # noqa: E402

_BASE = re.compile(r"debian:(?P<suite>\w+)-slim(?: AS (?P<name>\w+))?")
_KNOWN = ("FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "ENTRYPOINT", "CMD")
_CONFIGURATION = """[instance.main]
socket = "/run/none.sock"
volumes = { data = "tank/none" }
repository = "folder"

[repository.folder]
url = "file:///srv/repository"
"""
_IN_IT = (
    "zsnapdb --help | head -3",
    "zfs --version 2>/dev/null | head -1",
    "mariadb --version",
    "mariadbd --version",
    "innochecksum --version",
)
_AS_ANYBODY = (
    "zsnapdb --version",
    "zsnapdb config check",
    "zsnapdb init folder",
    "zsnapdb list main",
    "zsnapdb example",
)
"""Commands that need no root."""


@dataclass(frozen=True)
class ImageStep:
    """A step of a Dockerfile: its instruction and the rest of its line."""

    word: str
    rest: str


def steps(text: str) -> list[ImageStep]:
    """Return the steps of a Dockerfile, each as one line. Raise ValueError for an unknown step."""
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [ImageStep(*line.split(None, 1)) for line in joined.split("\n") if line.strip()]
    unknown = {step.word for step in found} - set(_KNOWN)
    if unknown:
        raise ValueError(f"steps that are not known: {', '.join(sorted(unknown))}")
    return found


class ImageTrial:
    """The roots of the stages so far. The last one is in progress, with its account and folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stages: list[Path] = []
        self.names: dict[str, Path] = {}
        self.user, self.place = "root", "/"

    @property
    def root(self) -> Path:
        """The root of the stage in progress."""
        return self.stages[-1]

    def do(self, step: ImageStep) -> None:
        """Run a step. Raise LabError if its command fails."""
        if step.word == "FROM":
            self._begin(step.rest)
        elif step.word == "RUN":
            self.run(step.rest)
        elif step.word == "COPY":
            self._copy(shlex.split(step.rest))
        elif step.word == "USER":
            self.user = step.rest
        elif step.word == "WORKDIR":
            self.place = step.rest
            (self.root / step.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def run(self, script: str) -> str:
        """Run a shell script as the account of the stage, in its folder."""
        certificates = Path("/etc/ssl/certs")
        needs = "pip install" in script and host.CERTIFICATES.exists()
        binds = [host.Bind(certificates, str(certificates))] if needs else []
        words = f"cd {shlex.quote(self.place)} && {script}"
        if self.user != "root":
            home = f"HOME=$(getent passwd {self.user} | cut -d: -f6)"
            words = f"{home} setpriv --reuid={self.user} --regid={self.user} --init-groups sh -ec {shlex.quote(words)}"
        return package_trial.run(self.root, words, binds)

    def _begin(self, rest: str) -> None:
        match = _BASE.fullmatch(rest)
        if match is None:
            raise host.LabError(f"FROM {rest}: only images of Debian are known here")
        place = self.folder / f"stage{len(self.stages)}"
        if self.stages:
            subprocess.run(["cp", "-a", str(self.folder / "bare"), str(place)], check=True)
        else:
            made = package_trial.bare_root(match["suite"], self.folder)
            _as_image(made, match["suite"])
            made.rename(self.folder / "bare")
            subprocess.run(["cp", "-a", str(self.folder / "bare"), str(place)], check=True)
        self.stages.append(place)
        self.names[match["name"] or ""] = place
        self.user, self.place = "root", "/"

    def _copy(self, words: list[str]) -> None:
        source = ROOT
        if words[0].startswith("--from="):
            source = self.names[words.pop(0).removeprefix("--from=")]
        *names, last = words
        target = (
            self.root / self.place.lstrip("/") / last.removeprefix("./")
            if last.startswith(".")
            else self.root / last[1:]
        )
        found = [Path(path) for name in names for path in glob.glob(str(source / name.lstrip("/")))]
        if not found:
            raise host.LabError(f"COPY {' '.join(names)}: there is no such file")
        if last.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        for path in found:
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, target)


def _as_image(root: Path, suite: str) -> None:
    """Write the package sources where Debian images have them."""
    sources = root / "etc/apt/sources.list.d/debian.sources"
    sources.parent.mkdir(exist_ok=True)
    signed = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"Types: deb\nURIs: {host.mirror()}\nSuites: {suite}\nComponents: main\nSigned-By: {signed}\n")
    (root / "etc/apt/sources.list").unlink(missing_ok=True)


def main() -> int:
    """Run every step, test the image, and return 0 if all succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        trial = ImageTrial(Path(folder))
        for step in steps((ROOT / "Dockerfile").read_text(encoding="utf-8")):
            began = time.monotonic()
            trial.do(step)
            print(f"{time.monotonic() - began:6.1f} s  {step.word} {step.rest}", flush=True)
        for command in _IN_IT:
            print(trial.run(command), flush=True)
        (trial.root / "etc/zsnapdb").mkdir()
        (trial.root / "etc/zsnapdb/zsnapdb.toml").write_text(_CONFIGURATION)
        trial.run("install -d -o zsnapdb /srv/repository")
        trial.user = "zsnapdb"
        for command in _AS_ANYBODY:
            trial.run(command)
            print(f"as {trial.user}: {command}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
