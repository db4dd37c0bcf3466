"""The fixtures of pytest have their clones of the service that the environment or the configuration of pytest names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served

ROOT = Path(__file__).parents[3]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(2))
def test_data(zsnapdb_data, number):
    assert zsnapdb_data.url.startswith("mysql://zsnapdb_clone:secret")

def test_fails(zsnapdb_clone):
    raise AssertionError(zsnapdb_clone)
"""


def session(host: ServeHost, options: list[str], conftest: str = "", **variables: str) -> str:
    """Run the tests with pytest, and return its output."""
    project = host.folder / "project"
    project.mkdir()
    (project / "test_theirs.py").write_text(TESTS)
    (project / "conftest.py").write_text(conftest)
    (project / "pytest.ini").write_text("\n".join(["[pytest]", *options]))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ZSNAPDB", "PYTEST"))}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "PYTEST_XDIST_WORKER": "gw1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **variables,
    }
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "zsnapdb.client.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, str(project)], cwd=project, env=environment, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("way", ["environment", "configuration"])
def test_a_session_has_one_clone_by_http_which_each_test_finds_clean(tmp_path: Path, way: str) -> None:
    host = ServeHost(tmp_path)
    variables = {"ZSNAPDB_TOKEN": host.token("ci:shop/web")}
    with host.helper(), served(host) as url:
        options = ["zsnapdb_instance = main", "zsnapdb_ttl = 1h"]
        if way == "environment":
            variables["ZSNAPDB_URL"] = url
            options.append("zsnapdb_url = https://elsewhere.example.org")
        else:
            options.append(f"zsnapdb_url = {url}")
        output = session(host, options, **variables)
    assert "1 failed, 2 passed" in output, output
    assert variables["ZSNAPDB_TOKEN"] not in output
    assert [call.words[1] for call in host.calls()] == ["create", "reset", "reset", "destroy"]
    words = host.calls()[0].words
    assert "--ttl=3600.000s" in words
    assert any(word.startswith("--name=pytest-gw1-") for word in words)


def test_unreachable_clone_fails_at_setup(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    host.let("local-only", "yes")
    with host.helper(), served(host) as url:
        output = session(host, [], ZSNAPDB_TOKEN=host.token("ci:shop/web"), ZSNAPDB_URL=url)
    assert "3 errors" in output, output
    assert "listens only on its own host" in output
    assert "`clones.bind_address`" in output
    assert [call.words[1] for call in host.calls()] == ["create", "destroy"]


def test_first_slow_reset_gives_warning_with_reason(tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    host.let("reason", "CREATE TABLE \x1b[2J was executed")
    variables = {"ZSNAPDB_TOKEN": host.token("ci:shop/web")}
    plugin = "import zsnapdb.client.pytest_plugin as plugin\nplugin._SLOW_SECONDS = 0.0\n"
    with host.helper(), served(host) as url:
        output = session(host, [], plugin, ZSNAPDB_URL=url, **variables)
    assert output.count("could not be undone: CREATE TABLE") == 1, output
    assert "1 warning" in output
    assert "\x1b[2J" not in output
