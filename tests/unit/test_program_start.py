"""Programs of servers and of the host get an environment of our own, and one module starts them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsnapdb
from zsnapdb.base import program_start
from zsnapdb.base.program_start import for_programs, for_terminal

ROOT = Path(zsnapdb.__file__).parent
OF_PROGRAMS = {"PATH", "HOME", "LC_ALL", "LANGUAGE", "MYSQL_TEST_LOGIN_FILE"}
OF_TERMINAL = {*OF_PROGRAMS, "TERM", "MYSQL_HISTFILE", "MARIADB_HISTFILE"}
HOSTILE = (
    *(
        "MYSQL_HOST",
        "MYSQL_TCP_PORT",
        "MYSQL_UNIX_PORT",
        "MYSQL_HOME",
        "MYSQL_PWD",
        "MYSQL_TEST_LOGIN_FILE",
        "MYSQL_PS1",
    ),
    *("MARIADB_HOME", "MYSQL_GROUP_SUFFIX", "LIBMYSQL_PLUGINS", "LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN", "MYSQL_HISTFILE"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "TMPDIR", "UMASK", "UMASK_DIR", "TZ"),
    *("MALLOC_PERTURB_", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "ZFS_COLOR", "ZPOOL_SCRIPTS_PATH", "ZFS_DEBUG"),
    *("HOME", "LANG", "LC_ALL", "LANGUAGE", "PAGER", "EDITOR", "INPUTRC", "TERMINFO", "NOTIFY_SOCKET", "OPENSSL_CONF"),
)
NAMES = st.sampled_from(HOSTILE) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
STARTERS = {
    # Programs of servers and of the host.
    "base/program_start.py",
    # The launcher of a sandbox becomes the server; its starter gave it the environment.
    "mysql/process/sandbox_launcher.py",
    # Programs of the site.
    "hooks.py",
    "notify/notifier.py",
    # zsnapdb itself, and the engine of a trial fleet.
    "agent/children.py",
    "agent/job_starter.py",
    "client/clones.py",
    "client/clone_holder.py",
    "fleet/trial_fleet.py",
    "jobs/binlog/archive_run.py",
    "vm/thaw_guard.py",
}


@given(st.dictionaries(NAMES, st.text("abc/:.;=", max_size=12), max_size=8))
def test_no_variable_outside_the_list_passes(variables: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        programs, terminal = for_programs(), for_terminal()
    assert set(programs) == OF_PROGRAMS
    assert set(terminal) <= OF_TERMINAL
    fixed = {name: value for name, value in programs.items() if name != "PATH"}
    assert fixed == {
        "HOME": "/dev/null",
        "LC_ALL": "C",
        "LANGUAGE": "C",
        "MYSQL_TEST_LOGIN_FILE": "/dev/null/mylogin.cnf",
    }
    assert all(os.path.isabs(folder) for folder in programs["PATH"].split(os.pathsep))
    assert "/" not in terminal.get("TERM", "")


def test_a_program_sees_nothing_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOSTILE:
        monkeypatch.setenv(name, "/nonexistent")
    done = program_start.run([sys.executable, "-I", "-c", "import os; print(sorted(os.environ))"], timeout=30)
    # Python itself sets LC_CTYPE in the locale C (PEP 538).
    assert set(ast.literal_eval(done.stdout.decode())) - {"LC_CTYPE"} == OF_PROGRAMS


def test_an_empty_environment_still_finds_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert program_start.run(["true"], timeout=30).returncode == 0


def _starts() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call that starts a program: its module, and the call."""
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and _is_start(node.func):
                yield str(file.relative_to(ROOT)), node


def _is_start(function: ast.expr) -> bool:
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
        return False
    module, name = function.value.id, function.attr
    if module == "subprocess":
        return name in {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}
    if module == "asyncio":
        return name.startswith("create_subprocess")
    return module == "os" and name.startswith(("exec", "spawn", "posix_spawn", "system", "popen"))


def test_only_the_listed_modules_start_programs() -> None:
    assert {module for module, _ in _starts()} == STARTERS


def test_each_program_is_given_its_environment() -> None:
    for module, call in _starts():
        if isinstance(call.func, ast.Attribute) and call.func.attr.startswith("exec"):
            # The launcher's own environment is what its starter gave it.
            assert call.func.attr == "execve" or module == "mysql/process/sandbox_launcher.py", module
        else:
            assert "env" in {keyword.arg for keyword in call.keywords}, f"{module}:{call.lineno}"


def test_nothing_starts_programs_by_another_name() -> None:
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("subprocess", "pty"), file
            if isinstance(node, ast.Import):
                assert not any(name.asname for name in node.names if name.name in ("subprocess", "os")), file


def test_a_started_program_has_no_terminal_of_ours() -> None:
    process = program_start.start(
        ["sh", "-c", "pwd; ps -o sid= -p $$ 2>/dev/null || echo $$"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        own_session=True,
    )
    out, _ = process.communicate()
    folder, session = out.decode().split()
    assert (folder, int(session)) == ("/", process.pid)
