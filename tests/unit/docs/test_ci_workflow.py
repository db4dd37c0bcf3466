"""The workflow in docs/teams.md creates a clone and destroys it, whatever its tests do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tools.references.pages import ROOT

from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served

PAGE = (ROOT / "docs" / "teams.md").read_text(encoding="utf-8")
(WORKFLOW,) = re.findall(r"```yaml\n(# \.github/workflows/test\.yml\n.*?)```", PAGE, re.DOTALL)
(SCRIPT,) = re.findall(r"```python\n(# \.github/ci_clone\.py\n.*?)```", PAGE, re.DOTALL)
CLONE = "ci-17000000000-1"


class _IdTokens(BaseHTTPRequestHandler):
    """Gives the token of the test as an id token, to the request that GitHub documents."""

    token: str

    def do_GET(self) -> None:
        is_right = self.headers["Authorization"] == "bearer of-the-job" and "&audience=http" in self.path
        self.send_response(200 if is_right else 403)
        self.end_headers()
        self.wfile.write(json.dumps({"value": self.token}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    host = ServeHost(tmp_path)
    tokens = type("Tokens", (_IdTokens,), {"token": host.token("ci:shop/web")})
    with host.helper(), served(host) as url, HTTPServer(("127.0.0.1", 0), tokens) as issuer:
        thread = threading.Thread(target=issuer.serve_forever)
        thread.start()
        yield {
            **os.environ,
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"http://127.0.0.1:{issuer.server_port}/?a=1",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
            "ZSNAPDB_URL": url,
            "CLONE": CLONE,
            "GITHUB_ENV": str(tmp_path / "env"),
            "PYTHONPATH": str(ROOT),
        }
        issuer.shutdown()
        thread.join()


def test_workflow_script_creates_a_clone_and_destroys_it(tmp_path: Path, environment: dict[str, str]) -> None:
    script = tmp_path / "ci_clone.py"
    script.write_text(SCRIPT)

    def run(action: str) -> str:
        command = [sys.executable, str(script), action]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert run("destroy") == "", "a clone that does not exist is no error"
    assert run("create") == "::add-mask::secret of the clone\n"
    assert "DATABASE_URL=mysql://zsnapdb_clone:" in (tmp_path / "env").read_text()
    assert [one["name"] for one in json.loads((tmp_path / "fake" / "clones").read_text())] == [CLONE]
    run("destroy")
    assert json.loads((tmp_path / "fake" / "clones").read_text()) == []


def test_workflow_destroys_the_clone_after_a_failure() -> None:
    steps = WORKFLOW.partition("steps:\n")[2].split("      - ")
    (create,) = [step for step in steps if "ci_clone.py create" in step]
    (destroy,) = [step for step in steps if "ci_clone.py destroy" in step]
    assert destroy.startswith("if: always()")
    assert steps.index(destroy) == len(steps) - 1 > steps.index(create)
