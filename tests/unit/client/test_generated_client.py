"""A client that a generator makes of the published schema talks to the real application over a real socket."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.unit.support.serve_host import ServeHost
from tests.unit.support.served_api import served
from zsnapdb.serve.roles import Role

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "docs" / "reference" / "openapi.json"
NAME = "generated_zsnapdb_client"
SUBJECT = "ci:shop/web"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Generate the client into a folder from which it can be imported."""
    made = tmp_path_factory.mktemp("generated")
    # What the generator would run afterwards is for the look of the code alone.
    (made / "config.yaml").write_text("post_hooks: []\n")
    program = Path(sys.executable).with_name("openapi-python-client")
    argv = [str(program if program.exists() else shutil.which(program.name)), "generate", "--path", str(PUBLISHED)]
    argv += ["--output-path", str(made / NAME), "--meta", "none", "--config", str(made / "config.yaml")]
    argv += ["--fail-on-warning"]
    done = subprocess.run(argv, cwd=made, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(made))
    yield made
    sys.path.remove(str(made))


def call(operation: str) -> Any:
    """Return what the generator made of an operation of the schema."""
    return importlib.import_module(f"{NAME}.api.default.{operation}").sync_detailed


def model(name: str) -> Any:
    return getattr(importlib.import_module(f"{NAME}.models"), name)


@contextmanager
def client_of(host: ServeHost, token: str) -> Iterator[Any]:
    with served(host) as url:
        kind = importlib.import_module(f"{NAME}.client").AuthenticatedClient
        with kind(base_url=url, token=token, raise_on_unexpected_status=True) as client:
            yield client


def test_a_generated_client_makes_changes_and_destroys_a_clone(folder: Path, tmp_path: Path) -> None:
    host = ServeHost(tmp_path)
    with host.helper(), client_of(host, host.token(SUBJECT)) as client:
        wanted = model("NewClone")(instance="main", name="mine", ttl="1h", heartbeat="30s")
        made = call("create_api_v1_clones_post")(client=client, body=wanted, idempotency_key="one")
        assert (made.status_code, made.parsed["user"]) == (HTTPStatus.CREATED, "zsnapdb_clone")
        again = call("create_api_v1_clones_post")(client=client, body=wanted, idempotency_key="one")
        assert again.parsed == made.parsed
        beat = call("beat_api_v1_clones_name_heartbeat_post")("mine", client=client)
        assert (beat.parsed.clone, beat.parsed.heartbeat, host.beats) == ("mine", 30, ["mine"])
        lease = model("NewLease")(ttl="3h")
        assert call("extend_api_v1_clones_name_extend_post")("mine", client=client, body=lease).status_code == 200
        assert call("reset_api_v1_clones_name_reset_post")("mine", client=client).parsed["undone"] == 2
        body = model("NewCommit")(message="kept")
        assert (
            call("commit_api_v1_clones_name_commit_post")("mine", client=client, body=body).parsed["message"] == "kept"
        )
        host.prints("logs", {"clone": "mine", "lines": ["ready"]})
        assert call("logs_api_v1_clones_name_logs_get")("mine", client=client).parsed.lines == ["ready"]
        host.prints("branch-create", {"kind": "clone-branches", "current": "main"})
        branch = model("NewBranch")(branch="f/x", from_="main")
        begun = call("create_branch_api_v1_clones_name_branches_post")("mine", client=client, body=branch)
        assert (begun.status_code, begun.parsed["current"]) == (HTTPStatus.CREATED, "main")
        listed = call("clones_api_v1_clones_get")(client=client).parsed["clones"]
        assert [one["name"] for one in listed] == ["mine"]
        assert call("destroy_api_v1_clones_name_delete")("mine", client=client).status_code == 200
        assert call("clones_api_v1_clones_get")(client=client).parsed["clones"] == []


def test_a_generated_client_knows_errors_as_problems_and_follows_an_operation(folder: Path, tmp_path: Path) -> None:
    host = ServeHost(tmp_path, patience=0.1)
    host.let("slow", "0.5")
    with host.helper(), client_of(host, host.token(SUBJECT)) as client:
        problem = model("ProblemDetails")
        gone = call("clone_api_v1_clones_name_get")("nobody", client=client)
        assert (gone.status_code, type(gone.parsed), gone.parsed.code) == (404, problem, "unknown-name")
        begun = call("create_api_v1_clones_post")(client=client, body=model("NewClone")(instance="main", name="mine"))
        assert begun.status_code == HTTPStatus.ACCEPTED
        follow = call("operation_api_v1_operations_id_get")
        seen = follow(begun.parsed.operation, client=client)
        while seen.status_code == HTTPStatus.ACCEPTED:
            seen = follow(begun.parsed.operation, client=client)
        assert seen.parsed["clone"]["name"] == "mine"
    with host.helper(), client_of(host, host.token(SUBJECT, Role.VIEWER)) as client:
        refused = call("destroy_api_v1_clones_name_delete")("mine", client=client)
        assert (refused.status_code, type(refused.parsed)) == (403, problem)
    with host.helper(), client_of(host, "zsnapdb_nothing") as client:
        assert call("clones_api_v1_clones_get")(client=client).status_code == 401
