"""A command loads what it needs: to load the modules of repositories takes longer than some commands do."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.unit.support.command_line import CHECKOUT, ENVIRONMENT

WITHOUT_REPOSITORY = (
    "zsnapdb.jobs.clone.catalogue",
    "zsnapdb.jobs.clone.lifecycle",
    "zsnapdb.jobs.clone.destroy",
    "zsnapdb.jobs.clone.reaper",
    "zsnapdb.jobs.vm.lifecycle",
    "zsnapdb.jobs.vm.removal",
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


OF_EXTRAS = ("fastapi", "jinja2", "starlette", "uvicorn", "joserfc", "httpx", "mcp", "temporalio")


def test_no_command_but_serve_mcp_and_fleet_loads_what_is_in_their_extras() -> None:
    modules = "zsnapdb.cli.app, zsnapdb.cli.sudo_cli, zsnapdb.cli.schema, zsnapdb.serve.helper"
    # The agent's fork server imports all that jobs load.
    fork_server = "from zsnapdb.cli.fork_server import import_all; import_all()"
    code = f"import {modules}, json, sys; {fork_server}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert [name for name in json.loads(done.stdout) if name.startswith(OF_EXTRAS)] == []


OF_TALKS = ("apscheduler", "boto3", "botocore", "libvirt", "lxml", "pytest", "requests", "rich", "urllib3")
"""What only some runs of a command need: it is loaded where such a run comes to it."""
OF_SERVERS = ("pymysql", "cryptography", "ssl")
"""What connects to a server, loads and decrypts."""
COMMANDS = {
    "snapshot": ((("backup", "snapshot"),), ("pyrage", "zsnapdb.planning.advice"), 279),
    "backup": ((("backup", "backup"),), ("zsnapdb.planning.advice",), 335),
    "restore --plan": (
        (("restore", "restore"), ("restore", "_show_plan")),
        ("zsnapdb.jobs.restore.server_restore",),
        371,
    ),
    "clone create": ((("clone.create", "create"), ("clone.create", "_carry_out")), (), 321),
    "clone list": ((("clone.lifecycle", "list_clones"),), (*OF_REPOSITORIES, *OF_SERVERS), 211),
    "status": ((("inventory", "_show"),), ("zsnapdb.notify.notifier", "zsnapdb.jobs.clone", *OF_SERVERS), 245),
    "list": ((("inventory", "list_backups"),), ("zsnapdb.notify", "zsnapdb.jobs.clone", *OF_SERVERS), 222),
    "doctor": ((("doctor", "_diagnoses"),), ("zsnapdb.jobs.backup.vm_source",), 465),
    "query": ((("query", "query"),), ("zsnapdb.jobs.clone.source_fetch",), 420),
}
"""For each command its functions, modules that it does not load, and how many of the package it loads at most.

A limit is the number of today and a few: a module more is nothing, a room more is seen.
"""


def imports_of(command: str) -> str:
    """Return a program that makes the imports which the functions of a command make in any case."""
    lines = ["import zsnapdb.cli.app"]
    for module, function in COMMANDS[command][0]:
        for node in ast.walk(ast.parse((CHECKOUT / "zsnapdb/cli" / f"{module.replace('.', '/')}.py").read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                lines += [ast.unparse(each) for each in always_imported(node)]
    assert len(lines) > 1
    return "\n".join(lines)


def loaded_by(command: str) -> set[str]:
    """Return the modules that are loaded then."""
    code = f"{imports_of(command)}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return set(json.loads(done.stdout))


def always_imported(node: ast.AST) -> list[ast.stmt]:
    """Return the imports of a function that stand in no branch of it."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            found.append(child)
        elif not isinstance(child, ast.If | ast.Try | ast.FunctionDef):
            found += always_imported(child)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_no_library_and_no_room_that_it_can_do_without(command: str) -> None:
    loaded = loaded_by(command)
    _, without, most = COMMANDS[command]
    assert sorted(name for name in loaded if name.startswith((*OF_TALKS, *without))) == []
    assert len([name for name in loaded if name.startswith("zsnapdb")]) <= most


MOST_OF_THE_CONFIGURATION = 10
"""MiB. The regular expressions of texts with a bound, such as `[^/]{1,4000}`, alone took more: a bound is a length."""


def test_to_read_the_configuration_takes_little_memory() -> None:
    code = (
        "from zsnapdb.config.settings import Settings\n"
        "from pathlib import Path\n"
        "resident = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * 4096 / 2**20\n"
        "before = resident(); Settings.model_rebuild(); print(resident() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert 0 < float(done.stdout) < MOST_OF_THE_CONFIGURATION
