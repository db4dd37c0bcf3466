"""A command loads what it needs: to load the modules of repositories takes longer than some commands do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.unit.support.command_line import ENVIRONMENT

WITHOUT_REPOSITORY = (
    "zsnapdb.jobs.clone.catalogue",
    "zsnapdb.jobs.clone.lifecycle",
    "zsnapdb.jobs.clone.destroy",
    "zsnapdb.jobs.clone.reaper",
    "zsnapdb.jobs.vm.life",
    "zsnapdb.jobs.vm.reaper",
)
"""The jobs of commands that only look at this host: list, start, stop, extend, beat, destroy, reap."""
OF_REPOSITORIES = ("zsnapdb.repository", "zsnapdb.store", "zsnapdb.stream", "boto3", "botocore", "pyrage", "zstandard")


@pytest.mark.parametrize("module", WITHOUT_REPOSITORY)
def test_what_opens_no_repository_loads_no_module_of_one(module: str) -> None:
    code = f"import {module}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    loaded = json.loads(done.stdout)
    assert module in loaded
    assert [name for name in loaded if name.startswith(OF_REPOSITORIES)] == []


def test_no_command_but_serve_loads_what_serves_http() -> None:
    modules = "zsnapdb.cli.app, zsnapdb.cli.delegated, zsnapdb.report.schemas, zsnapdb.serve.helper"
    code = f"import {modules}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert [name for name in json.loads(done.stdout) if name.startswith(("fastapi", "starlette", "uvicorn"))] == []
