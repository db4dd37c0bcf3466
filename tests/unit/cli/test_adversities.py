"""Every command ends with one of the exit codes, without root too, and whatever has become of its standard streams."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.references.commands import CommandText, commands

from tests.unit.support.adverse_commands import AdverseCase, Adversity, CommandEnd, ends
from tests.unit.support.command_line import ENVIRONMENT
from zsnapdb.base.errors import CLOSED_PIPE, EXIT_CODES

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
volumes = {{ data = "none/data" }}
repository = "here"
[repository.here]
url = "file://{folder}/backups"
"""
ENDLESS = {
    *(("agent",), ("agent", "run"), ("binlog", "archive"), ("mcp",), ("serve",), ("serve-helper",)),
    *(("clone", "hold"), ("clone", "keep")),
    *(("fleet", "control"), ("fleet", "dev"), ("fleet", "worker")),
}
"""These work until they are told to end."""
PLANNED: dict[tuple[str, ...], tuple[str, ...]] = {("setup",): ("--plan",)}
ENDING = [command for command in commands() if not command.is_group and command.words not in ENDLESS]


def cases_of(number: int, command: CommandText) -> list[AdverseCase]:
    """Return a command without root, with a full disk behind stdout, and with another fault of its streams.

    Which fault that is depends on the number.
    """
    words = (*command.words, *PLANNED.get(command.words, ()), *("main", "latest", "x")[: len(command.arguments)])
    document = (*words, "--json") if any("--json" in option.names for option in command.options) else words
    always = (Adversity.FULL, Adversity.NOBODY) if os.geteuid() == 0 else (Adversity.FULL,)
    others = [adversity for adversity in Adversity if adversity not in (Adversity.FULL, Adversity.NOBODY)]
    return [AdverseCase(document, adversity) for adversity in (*always, others[number % len(others)])]


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[AdverseCase, CommandEnd]]:
    cases = [case for number, command in enumerate(ENDING) for case in cases_of(number, command)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # a folder of pytest can be entered by root alone
        (folder / "backups").mkdir()
        config = folder / "zsnapdb.toml"
        config.write_text(CONFIGURATION.format(folder=folder))
        environment = {**ENVIRONMENT, "PATH": "/nonexistent", "ZSNAPDB_CONFIG": str(config), "HOME": str(folder)}
        yield dict(zip(cases, ends(cases, folder, environment), strict=True))


@pytest.mark.parametrize("adversity", Adversity)
def test_no_command_ends_in_a_traceback_whatever_is_wrong_around_it(
    ended: dict[AdverseCase, CommandEnd], adversity: Adversity
) -> None:
    if adversity is Adversity.NOBODY and os.geteuid() != 0:
        pytest.skip("every case of this run is without root")
    of_adversity = {case: end for case, end in ended.items() if case.adversity is adversity}
    assert len(of_adversity) > 10
    wrong = {
        case.words: end
        for case, end in of_adversity.items()
        if end.code not in EXIT_CODES or "Traceback" in end.stderr or "Exception ignored" in end.stderr
    }
    assert wrong == {}


def test_who_reads_no_more_or_has_no_space_is_told_by_the_exit_code(ended: dict[AdverseCase, CommandEnd]) -> None:
    assert CLOSED_PIPE in {end.code for case, end in ended.items() if case.adversity is Adversity.GONE}
    full = ended[AdverseCase(("config", "check", "--json"), Adversity.FULL)]
    assert full.code == 1
    assert full.stderr.startswith("zsnapdb: writing the result to stdout: No space left on device")
