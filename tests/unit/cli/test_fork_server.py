"""What is the same for every job is there before it is forked."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.unit.support.command_line import ENVIRONMENT

MODELS = """
import json
from zsnapdb.cli import app, fork_server
app.prepare()
fork_server.import_all()
fork_server.complete_models()
models = [one for one in fork_server._below(fork_server.BaseModel) if one.__module__.startswith("zsnapdb.")]
print(json.dumps([len(models), [one.__name__ for one in models if not one.__pydantic_complete__]]))
"""


def test_a_forked_job_finds_every_model_built() -> None:
    done = subprocess.run([sys.executable, "-c", MODELS], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    count, incomplete = json.loads(done.stdout)
    assert count > 100
    assert incomplete == []
