"""Every command ends with one of the exit codes, whatever has become of its standard streams."""

from __future__ import annotations

import pytest
from tools.references.commands import CommandText, commands

from tests.unit.support.closed_streams import CommandEnd, StreamCase, Streams, ends
from tests.unit.support.command_line import ENVIRONMENT
from zsnapdb.errors import CLOSED_PIPE, EXIT_CODES

CONFIGURATION = """
[instance.main]
socket = "/nonexistent/server.sock"
volumes = {{ data = "none/data" }}
repository = "here"
[repository.here]
url = "file://{folder}/backups"
"""
ENDLESS = {("agent",), ("agent", "run"), ("binlog", "archive")}
"""These work until they are told to end."""
PLANNED: dict[tuple[str, ...], tuple[str, ...]] = {("setup",): ("--plan",)}
ENDING = [command for command in commands() if not command.is_group and command.words not in ENDLESS]


def cases_of(number: int, command: CommandText) -> list[StreamCase]:
    """Return a command whose stdout is full, and with one other fault of its streams, which depends on the number."""
    words = (*command.words, *PLANNED.get(command.words, ()), *("main", "latest", "x")[: len(command.arguments)])
    document = (*words, "--json") if any("--json" in option.names for option in command.options) else words
    others = [streams for streams in Streams if streams is not Streams.FULL]
    return [StreamCase(document, Streams.FULL), StreamCase(document, others[number % len(others)])]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[StreamCase, CommandEnd]:
    folder = tmp_path_factory.mktemp("host")
    (folder / "backups").mkdir()
    config = folder / "zsnapdb.toml"
    config.write_text(CONFIGURATION.format(folder=folder))
    cases = [case for number, command in enumerate(ENDING) for case in cases_of(number, command)]
    environment = {**ENVIRONMENT, "PATH": "/nonexistent", "ZSNAPDB_CONFIG": str(config), "HOME": str(folder)}
    return dict(zip(cases, ends(cases, folder, environment), strict=True))


@pytest.mark.parametrize("streams", Streams)
def test_no_command_ends_in_a_traceback_whatever_has_become_of_its_streams(
    ended: dict[StreamCase, CommandEnd], streams: Streams
) -> None:
    of_streams = {case: end for case, end in ended.items() if case.streams is streams}
    assert len(of_streams) > 10
    wrong = {
        case.words: end
        for case, end in of_streams.items()
        if end.code not in EXIT_CODES or "Traceback" in end.stderr or "Exception ignored" in end.stderr
    }
    assert wrong == {}


def test_who_reads_no_more_or_has_no_space_is_told_by_the_exit_code(ended: dict[StreamCase, CommandEnd]) -> None:
    assert CLOSED_PIPE in {end.code for case, end in ended.items() if case.streams is Streams.GONE}
    full = ended[StreamCase(("config", "check", "--json"), Streams.FULL)]
    assert full.code == 1
    assert full.stderr.startswith("zsnapdb: writing the result to stdout: No space left on device")
