"""The command line is quick, documented, and maps errors to exit codes."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.support.command_line import CHECKOUT, zsnapdb, zsnapdb_from_nothing
from zsnapdb.cli.printed_commands import with_instance


def processor_seconds() -> float:
    """Return the processor seconds of all commands so far; other work on the machine hardly changes them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_comes_at_once() -> None:
    """In processor time: on a busy machine everything waits. The bound is four times what an ordinary machine takes."""
    times = []
    for _ in range(5):
        began = processor_seconds()
        assert zsnapdb_from_nothing("--help").returncode == 0
        times.append(processor_seconds() - began)
    assert min(times) < 1.2, times


def test_help_loads_no_database_driver_and_no_cloud_library() -> None:
    code = (
        "import sys, zsnapdb.cli.app; print([m for m in ('pymysql', 'boto3', 'pydantic', 'zstandard') if m in"
        " sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_configuration_ends_with_its_exit_code_and_a_hint() -> None:
    done = zsnapdb("list", config="/nonexistent/zsnapdb.toml")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_as_json_has_code_message_and_hint() -> None:
    done = zsnapdb("list", "--json", config="/nonexistent/zsnapdb.toml")
    document = json.loads(done.stdout)
    assert (document["kind"], document["exit_code"], document["error"]["code"]) == ("error", 3, "config")
    assert document["error"]["hint"]


def test_wrong_usage_ends_with_2() -> None:
    assert zsnapdb_from_nothing("pin").returncode == 2


def test_an_unknown_key_is_refused_before_anything_else(tmp_path: Path) -> None:
    file = tmp_path / "zsnapdb.toml"
    file.write_text(
        '[instance.a]\nsoket = "/x"\nvolumes = { data = "t/d" }\nrepository = "r"\n[repository.r]\nurl = "file:///x"\n'
    )
    done = zsnapdb("backup", config=str(file))
    assert done.returncode == 3
    assert "unknown key instance.a.soket" in done.stderr
    assert "did you mean 'socket'?" in done.stderr


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"zsnapdb \d+\.\d+\.\d+\n", zsnapdb_from_nothing("--version").stdout)


def shown_commands() -> list[str]:
    text = "\n".join((CHECKOUT / name).read_text() for name in ("README.md", "docs/commands.md", "docs/install.md"))
    blocks = re.findall(r"```(?:console|sh)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("# ").removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("zsnapdb ")})


@pytest.mark.parametrize("line", shown_commands())
def test_every_command_of_the_front_pages_is_one_the_tool_knows(line: str) -> None:
    words = line.split("#")[0].split()[1:]
    verbs = [word for word in words[:2] if not word.startswith("-")]
    known = verbs[:2] if verbs[0] in ("binlog", "clone", "config", "key", "token") else verbs[:1]
    done = zsnapdb(*known, "--help")
    assert done.returncode == 0
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("unpin", "a", "latest"), ("pin", "a", "latest", "--remove")),
        (("forget", "a"), ("acknowledge-removed", "a")),
        (("advise", "a", "--for", "2s"), ("doctor", "a", "--load", "--for", "2s")),
    ],
)
def test_an_old_name_of_a_command_does_what_the_new_one_does_and_says_its_name(
    old: tuple[str, ...], new: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "zsnapdb.toml"
    file.write_text(
        f'[instance.a]\nsocket = "/x"\nvolumes = {{ data = "t/d" }}\nrepository = "r"\n'
        f'[repository.r]\nurl = "file://{tmp_path}/none"\n'
    )
    before, after = (zsnapdb(*words, config=str(file)) for words in (old, new))
    name = " ".join((new[0], *(word for word in new if word in ("--remove", "--load"))))
    note = with_instance(f"zsnapdb: warning: `zsnapdb {old[0]}` is now `zsnapdb {name}`\n", "a")
    assert before.stderr.startswith(note)
    assert (before.returncode, before.stdout, before.stderr.removeprefix(note)) == (
        after.returncode,
        after.stdout,
        after.stderr,
    )
    assert after.returncode == (5 if "--load" in new else 6), after.stderr


def test_what_an_interrupt_brings_along_is_told() -> None:
    program = (
        "import sys; import zsnapdb.cli.app as app\n"
        "@app.app.command('stop')\n"
        "def stop() -> None:\n"
        "    error = KeyboardInterrupt(); error.add_note('how it goes on'); raise error\n"
        "sys.argv = ['zsnapdb', 'stop']; app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "zsnapdb: interrupted\nzsnapdb: how it goes on\n")
