"""Temporal's own server with certificates for all: who shows a right one does jobs, and nobody else is heard."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support import site_engine, trial_engine
from tests.unit.support.certificates import Authority, Files
from tests.unit.support.site_engine import SiteEngine

pytestmark = pytest.mark.skipif(site_engine.program(site_engine.SERVER) is None, reason=site_engine.ABSENT)
SECONDS = 240.0


@dataclass(frozen=True)
class GuardedSite:
    """The engine, the certificates that it believes, and one that it does not."""

    engine: SiteEngine
    control: Files
    host: Files
    foreign: Files
    stack: ExitStack

    @property
    def folder(self) -> Path:
        return self.engine.folder

    def worker(self, shown: Files | None, log: str) -> Path:
        """Start a worker of the host db1, and return its log."""
        words = [str(self.folder), str(self.engine.port), "db1", "a", "backup", "2"]
        if shown is not None:
            words += [str(self.host.ca), str(shown.cert), str(shown.key), self.engine.server_name]
        process = trial_engine.python("-m", "tests.unit.support.fleet_host", *words, log=self.folder / log)
        self.stack.callback(trial_engine.end, process)
        return self.folder / log

    def fleet(self, shown: Files | None, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `zsnapdb fleet` with this certificate."""
        jobs, engine = self.folder / "asked-jobs.toml", self.engine.settings(shown)
        lines = [f'{name} = "{value}"\n' for name, value in engine.model_dump(exclude_none=True).items()]
        # Whose certificate it shows does not change whom it believes.
        text = "".join(lines).replace(str(self.foreign.ca), str(self.host.ca))
        jobs.write_text(f'[engine]\n{text}[instance.quick]\nhost = "db1"\n')
        command = [sys.executable, "-m", "zsnapdb", "fleet", *words, "--jobs", str(jobs), "--json"]
        return subprocess.run(command, capture_output=True, text=True, env=trial_engine.environment())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSite]:
    folder = tmp_path_factory.mktemp("site")
    authority, other = Authority(folder / "own"), Authority(folder / "other")
    server, control, host = (authority.issue(name, stem=f"{name}.") for name in ("temporal", "control", "host.db1"))
    foreign = other.issue("host.db1")
    for files in (control, host, foreign):
        files.key.chmod(0o600)
    engine = SiteEngine(folder, site_engine.free_port(), tls=server)
    with ExitStack() as stack:
        stack.enter_context(engine.running())
        made = GuardedSite(engine, control, host, foreign, stack)
        until(lambda: not raised(engine, control))
        jobs = folder / "fleet-jobs.toml"
        made.fleet(control, "history")
        jobs.write_text((folder / "asked-jobs.toml").read_text())
        words = ("-m", "zsnapdb", "fleet", "control", "--jobs", str(jobs))
        stack.callback(trial_engine.end, trial_engine.python(*words, log=folder / "control.log"))
        until(lambda: made.fleet(control, "history").returncode == 0)
        yield made


def raised(engine: SiteEngine, shown: Files) -> bool:
    """Make the namespace. Return whether the engine is not ready for that."""
    from temporalio.service import RPCError

    from zsnapdb.base.errors import UnreachableError

    try:
        engine.make_namespace(shown)
    except (RPCError, UnreachableError):
        return True
    return False


def until(is_true: Any) -> None:
    """Return when it is true. AssertionError if it does not become so in time."""
    deadline = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.1)


def test_a_host_and_control_with_certificates_of_the_site_do_a_job(site: GuardedSite) -> None:
    site.worker(site.host, "good.log")
    done = site.fleet(site.control, "run", "backup", "--all", "--wait")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["state"], run["host"]) == ("completed", "db1")


@pytest.mark.parametrize("shows", ["none", "foreign"])
def test_who_shows_no_certificate_of_the_site_is_refused_with_the_reason(site: GuardedSite, shows: str) -> None:
    shown = site.foreign if shows == "foreign" else None
    refused = site.fleet(shown, "history")
    assert (refused.returncode, "cannot be reached: it ended the connection" in refused.stderr) == (6, True)
    log = site.worker(shown, f"{shows}.log")
    until(lambda: "cannot be reached: it ended the connection" in log.read_text())
    assert "takes jobs" not in log.read_text()
