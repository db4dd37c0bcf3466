"""Test of the installation commands on the page "Install", as printed, in bare roots of a release.

`python3 packaging/tools/readme_trial.py bookworm [trixie …]`, as root, on a machine with debootstrap and a mirror.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.lab import guides, host  # noqa: E402
from tools import package_trial  # noqa: E402

PAGE = ROOT / "docs" / "install.md"
BY_HAND = "bare host, by hand"
_SETUP = "zsnapdb setup s3://my-backups/production --plan"
"""No server runs in a bare root: setup reports this, and changes nothing."""


def trial(bare: Path, where: str) -> None:
    """Run the page's blocks for `where` in a copy of the root, then the manual ones.

    A command that waits for input fails. Raise LabError if a command fails.
    """
    root = bare.with_name(f"{bare.name}-{where.replace(', ', '-').replace(' ', '-')}")
    subprocess.run(["cp", "-a", "--reflink=auto", str(bare), str(root)], check=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True).stdout
    (root / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", str(root / "source")], input=archive, check=True)
    page = PAGE.read_text(encoding="utf-8")
    for block in (*guides.blocks(page, where), *guides.blocks(page, BY_HAND)):
        for line in block.lines:
            began = time.monotonic()
            package_trial.run(root, f"cd /source\n{line}", () if line.startswith("apt-get") else _certificates())
            print(f"{bare.name}: {time.monotonic() - began:6.1f} s  {line}", flush=True)
    said = package_trial.run(root, f"{_SETUP} 2>&1 || [ $? = 4 ]")
    print(f"{bare.name}: {_SETUP}: {said.strip()}", flush=True)


def _certificates() -> list[host.Bind]:
    folder = Path("/etc/ssl/certs")
    return [host.Bind(folder, str(folder))] if host.CERTIFICATES.exists() else []


def main() -> int:
    """Test each release both ways, and return 0 if every command succeeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    for suite in parser.parse_args().suites:
        with tempfile.TemporaryDirectory() as folder:
            bare = package_trial.bare_root(suite, Path(folder))
            trial(bare, "bare host")
            trial(bare, "bare host, package")
    return 0


if __name__ == "__main__":
    sys.exit(main())
