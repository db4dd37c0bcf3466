"""`agent status` names how the configuration of the running agent differs from the file that it is asked about."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from zsnapdb.agent import records
from zsnapdb.agent.web import overview
from zsnapdb.config.settings import Settings, parse
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.run_locks import exclusive
from zsnapdb.jobs.host.agent_presence import LOCK

NOW = datetime(2026, 11, 25, 7, tzinfo=UTC)
FIRST = """
[agent]
state = "/nowhere"
[instance.main]
socket = "/x"
repository = "here"
agent.backup = { every = "1h" }
[repository.here]
url = "file:///nowhere"
"""
SECOND = """
[instance.second]
socket = "/y"
repository = "here"
agent.backup = { every = "1h" }
"""


def settings(text: str) -> Settings:
    return parse(text, "test")


def seen(host: Host, text: str, file: Path) -> str:
    return overview(settings(text), file, host).difference


def test_what_the_running_agent_does_not_know_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    host, file, other = Host(run=tmp_path, now=lambda: NOW), Path("/etc/z/first.toml"), Path("/etc/z/second.toml")
    with exclusive(LOCK, doing="the agent of this host", folder=tmp_path):
        assert seen(host, FIRST, file) == ""
        records.note(settings(FIRST), file, host)
        assert seen(host, FIRST, file) == ""
        assert seen(host, "# a comment\n" + FIRST, file) == ""
        assert seen(host, FIRST + SECOND, file) == (
            "/etc/z/first.toml has changed since the agent read it at 2026-11-25 07:00:00 UTC; it does not run backup"
            f" second: `kill -HUP {os.getpid()}` has it read again"
        )
        alone = FIRST.partition("[instance.main]")[0] + SECOND + '[repository.here]\nurl = "file:///nowhere"\n'
        assert seen(host, alone, other) == (
            "the agent runs with /etc/z/first.toml, not with /etc/z/second.toml; it does not run backup second"
        )
    # What a killed agent left says nothing about one that does not run.
    assert seen(host, FIRST + SECOND, file) == ""
    records.forget(host)
    assert records.last_configuration(host) is None
