"""Test of the Debian package in bare roots of releases: apt installs it, it works, and a purge leaves nothing.

One package, built in the first root, is tried in all of them.

`python3 packaging/tools/package_trial.py bookworm [trixie …]`, as root, on a machine with debootstrap and a mirror.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab import host  # noqa: E402

_TOOLS = ("python3", "python3-venv", "ca-certificates")
_CHANGING = ("/var/lib/dpkg", "/var/lib/apt", "/var/cache", "/var/log", "/proc", "/dev")
_NOT_COMPARED = (*_CHANGING, "/tmp", "/build")  # noqa: S108 - no file is made there
"""Paths that any installation and removal changes, and mounts of this test."""
_WORKS = (
    "zsnapdb --version",
    "zsnapdb example setup-answers.toml",
    "zsnapdb example zsnapdb-agent.service",
    "test -f /usr/share/man/man1/zsnapdb-backup.1.gz || grep -q path-exclude -r /etc/dpkg",
    "test -f /usr/share/bash-completion/completions/zsnapdb",
    "test -f /usr/share/zsh/vendor-completions/_zsnapdb",
    "test -f /usr/share/fish/vendor_completions.d/zsnapdb.fish",
    "echo '# Written by zsnapdb setup' > /etc/cron.d/zsnapdb-main",
    "test -d /var/lib/zsnapdb",
    "/usr/lib/zsnapdb/bin/python3 -c 'import zsnapdb.serve.web_server, zsnapdb.serve.id_tokens'",
    "/usr/lib/zsnapdb/bin/python3 -c 'import zsnapdb.fleet.worker'",
    "zsnapdb config check 2>&1 | grep -q /etc/zsnapdb",
)


def run(root: Path, script: str, binds: Sequence[host.Bind] = ()) -> str:
    """Return the output of a shell script run in the root. Raise LabError if it failed."""
    argv = host.in_root(root, ["sh", "-ec", script], binds, own_processes=True)
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise host.LabError(f"in {root.name}: {script}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def bare_root(suite: str, folder: Path) -> Path:
    """Return a new root of the release with only the minimal packages."""
    root = folder / suite
    mirror = ["debootstrap", "--variant=minbase", suite, str(root), host.mirror()]
    subprocess.run(["unshare", "--mount", *mirror], check=True, capture_output=True)
    (root / "etc/apt/apt.conf.d/90trial").write_text(
        'APT::Install-Recommends "false";\nDpkg::Options { "--force-unsafe-io"; };\n'
        # Package lists of a mirror may have expired.
        'Acquire::Check-Valid-Until "false";\n' + host.apt_proxy_lines()
    )
    for name in ("resolv.conf", "hosts"):
        if (source := Path("/etc", name)).exists():
            shutil.copy(source, root / "etc" / name)
    run(root, "apt-get -q update")
    return root


def built(root: Path, folder: Path) -> Path:
    """Return the package, built in a copy of the root for all Python releases."""
    maker = root.with_name(f"{root.name}-maker")
    subprocess.run(["cp", "-a", "--reflink=auto", str(root), str(maker)], check=True)
    binds = [host.Bind(ROOT, "/build/source"), host.Bind(folder, "/build/out")]
    certificates = Path("/etc/ssl/certs")
    binds += [host.Bind(certificates, "/etc/ssl/certs")] if certificates.is_dir() else []
    run(maker, f"apt-get -q -y install {' '.join(_TOOLS)}")
    script = (
        "python3 -m venv /venv; cp -a /build/source /source; cd /source; /venv/bin/pip install -q hatchling .;"
        " PYTHONPATH=packaging /venv/bin/python -m tools.debian_package /build/out"
    )
    run(maker, script, binds)
    shutil.rmtree(maker)
    return max(folder.glob("zsnapdb_*.deb"), key=lambda file: file.stat().st_mtime)


def listing(root: Path) -> set[str]:
    """Return the paths of all compared files and folders of the root."""
    return {path for path in run(root, "find / -xdev").split("\n") if path and not path.startswith(_NOT_COMPARED)}


def trial(root: Path, package: Path) -> list[str]:
    """Return the paths that a purge left in the root, after the package was installed and used."""
    run(root, "apt-get -q -y install python3; mkdir -p /etc/cron.d")
    before = listing(root)
    began = time.monotonic()
    run(root, f"apt-get -q -y install /build/{package.name}", [host.Bind(package.parent, "/build")])
    print(f"{root.name}: {package.name} installed in {time.monotonic() - began:.0f} s", flush=True)
    for command in _WORKS:
        run(root, command)
    run(root, "apt-get -q -y purge zsnapdb")
    return sorted(listing(root) - before)


def main() -> int:
    """Test each release, and return 0 if nothing was left in any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", metavar="SUITE")
    left = 0
    with tempfile.TemporaryDirectory() as folder:
        roots = [bare_root(suite, Path(folder)) for suite in parser.parse_args().suites]
        package = built(roots[0], Path(folder))
        for root in roots:
            rest = trial(root, package)
            left += len(rest)
            print(f"{root.name}: a purge left {len(rest)} paths", *rest[:20], flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
