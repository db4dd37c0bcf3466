"""Whatever stands where an option or an argument has its value, a command ends with a result or an error of its own."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest
from tools.references.commands import CommandText, commands
from typer.main import get_command

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.cli.app import app

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
volumes = {{ data = "none/data" }}
repository = "here"
[repository.here]
url = "file://{folder}/backups"
"""
VALUES = (
    "",
    "-1",
    "99999999999999999999",
    "no\nline",
    "../../x",
    "/",
    "\udcff",
    "1e400",
    "/dev/null",
    "bytes",
    "x" * 300,
)
"""Numbers, paths and texts that are right for few options."""
ALWAYS: dict[tuple[str, ...], tuple[str, ...]] = {("binlog", "archive"): ("--once",), ("setup",): ("--plan",)}
"""What keeps a command from working without end, or on this machine."""
WITHOUT = {
    *(("agent",), ("agent", "run"), ("clone", "hold"), ("clone", "keep"), ("mcp",), ("serve",), ("serve-helper",)),
    *(("fleet", "control"), ("fleet", "dev"), ("fleet", "worker")),
}
"""These work until they are told to end."""
FUZZED = [command for command in commands() if not command.is_group and command.words not in WITHOUT]
ROOT: Any = get_command(app)


def end_of(words: list[str]) -> BaseException | None:
    """Return what ended the command, None if it returned."""
    try:
        ROOT.main(words, prog_name="zsnapdb", standalone_mode=False)
    except BaseException as error:
        return error
    return None


# PyMySQL leaves the socket of a connection that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("command", FUZZED, ids=lambda command: "-".join(command.words))
def test_no_value_of_an_option_ends_in_a_traceback(
    command: CommandText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "zsnapdb.toml"
    config.write_text(CONFIGURATION.format(folder=tmp_path))
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZSNAPDB_CONFIG", str(config))
    monkeypatch.setenv("PATH", "/nonexistent")
    chance = random.Random(" ".join(command.words))
    options = [option.names[-1] for option in command.options if option.metavar]
    for name in [*options, ""]:
        for value in VALUES:
            arguments = [chance.choice((*VALUES, "main", "latest")) for _ in command.arguments]
            always = ALWAYS.get(command.words, ())
            words = [
                *command.words,
                *always,
                *([f"{name}={value}"] if name else []),
                "--",
                *(arguments if name else [value]),
            ]
            error = end_of(words)
            of_usage = type(error).__module__.partition(".")[0] in ("click", "typer")
            assert error is None or of_usage or isinstance(error, SystemExit | ZsnapdbError), (words, repr(error))
    # Sockets that are collected in a later test would be an error there.
    gc.collect()
