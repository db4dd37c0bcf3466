"""Unit tests with the Python of a Debian release, and the newest or the oldest allowed libraries.

`python3 packaging/tools/python_trial.py [--lowest] SUITE [pytest arguments]`, as root, on a machine with debootstrap
and a mirror. Without arguments, only tests that need nothing but Python run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "packaging")]

from tests.lab import host  # noqa: E402
from tools import package_trial  # noqa: E402

_CORE = ("planning", "repository", "stream", "store", "zfs", "mysql", "notify", "monitoring", "test_config.py")
_SHOW = "/venv/bin/python --version; /venv/bin/pip list --format freeze"


def lower_bounds(project: str) -> list[str]:
    """Return each dependency of a pyproject.toml at exactly its lower bound."""
    dependencies = tomllib.loads(project)["project"]["dependencies"]
    return [dependency.partition(",")[0].replace(">=", "==") for dependency in dependencies]


def main() -> int:
    """Print the versions and the result of the tests. Raise LabError if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite")
    parser.add_argument("--lowest", action="store_true", help="the lower bound of each dependency")
    given, words = parser.parse_known_args()
    tests = words or [f"tests/unit/{name}" for name in _CORE]
    exact = lower_bounds((ROOT / "pyproject.toml").read_text(encoding="utf-8")) if given.lowest else []
    # The oldest typer imports deprecated parts of click.
    more = ["-W", "ignore:'click:DeprecationWarning"] if given.lowest else []
    with tempfile.TemporaryDirectory() as folder:
        root = package_trial.bare_root(given.suite, Path(folder))
        package_trial.run(root, "apt-get -q -y install python3 python3-venv git procps")
        binds = [host.Bind(ROOT, "/build")]
        certificates = Path("/etc/ssl/certs")
        binds += [host.Bind(certificates, str(certificates))] if host.CERTIFICATES.exists() else []
        install = f"/venv/bin/pip install -q {shlex.join(exact)} '.[dev]'"
        package_trial.run(root, f"python3 -m venv /venv; cp -a /build /source; cd /source; {install}", binds)
        print(package_trial.run(root, _SHOW), flush=True)
        run = shlex.join(["/venv/bin/python", "-m", "pytest", "-q", "-o", "addopts=", *more, *tests])
        print(package_trial.run(root, f"cd /source; {run} > log 2>&1 || {{ tail -60 log; exit 1; }}; tail -3 log"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
