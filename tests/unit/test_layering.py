"""The rooms import in one direction, and each foreign library has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "zsnapdb"

BASE = {"errors", "gtid", "model", "config", "quantities", ""}
ALLOWED = {
    "errors": set(),
    "gtid": set(),
    "model": {"errors", "gtid"},
    "config": {"errors", "model", "quantities"},
    "quantities": {"errors"},
    "planning": BASE | {"planning"},
    "zfs": BASE | {"planning", "zfs"},
    "mysql": BASE | {"planning", "mysql"},
    "hooks": BASE,
    "store": BASE | {"planning", "store"},
    "stream": BASE | {"planning", "stream"},
    "repository": BASE | {"planning", "stream", "store", "repository"},
    "jobs": BASE | {"planning", "zfs", "mysql", "store", "stream", "repository", "hooks", "jobs"},
    "report": BASE | {"planning", "repository", "jobs", "report"},
    "cli": BASE | {"jobs", "report", "cli"},
    "__main__": {"cli"},
    "__init__": set(),
}
PURE = {"errors", "gtid", "model", "planning"}
IMPURE_MODULES = {"os", "subprocess", "socket", "time", "random", "secrets", "logging", "pathlib", "io", "shutil", "tempfile", "threading"}
HOMES = {
    "pymysql": {"mysql/session.py"},
    "boto3": {"store/s3.py"},
    "botocore": {"store/s3.py"},
    "typer": None,
    "ctypes": {"zfs/core.py"},
    "zstandard": {"stream/chunks.py"},
    "blake3": {"stream/chunks.py"},
    "pyrage": {"repository/keys.py"},
    "cryptography": {"repository/keys.py", "stream/crypto.py"},
}
PROCESSES = {"zfs/command.py", "zfs/streams.py", "mysql/processes.py", "mysql/programs.py", "hooks.py"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from ([f"zsnapdb.{alias.name}" for alias in node.names] if node.module == "zsnapdb" else [node.module])


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_a_room_imports_only_what_lies_below_it(path: Path) -> None:
    allowed = ALLOWED[room(path)]
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("zsnapdb.")}
    assert {name for name in ours if not name.startswith("__")} <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_each_foreign_library_has_one_home(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    for imported in imports(path):
        top = imported.split(".")[0]
        if top == "typer":
            assert name.startswith("cli/")
        elif top in HOMES:
            homes = HOMES[top]
            assert homes is not None
            assert name in homes
        elif top == "subprocess":
            assert name in PROCESSES


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) in PURE], ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_decisions_have_no_clock_and_no_io(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & IMPURE_MODULES
    names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not names & {"now", "utcnow", "today"}


def test_no_command_goes_through_a_shell() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert not any(word.arg == "shell" for word in node.keywords), path
                assert not (isinstance(node.func, ast.Attribute) and node.func.attr in ("system", "popen")), path
