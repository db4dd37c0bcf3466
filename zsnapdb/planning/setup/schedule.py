"""The unit of the agent for a host on which no package put one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

UNIT = "zsnapdb-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
_START, _STOPPED = "ExecStart=", "ExecStopPost=-"


def unit_text(example: str, program: Sequence[str], configuration: str) -> str:
    """Return the unit that runs this program with this configuration; all else is that of the example.

    `program` are the words that start zsnapdb; the first one is an absolute path.
    """
    start, with_it = _START + _words((*program, "agent")), _words(("--config", configuration))
    # systemd replaces %N by the name of the unit.
    stopped = f"{_STOPPED}{_words((*program, 'notify', 'failed'))} %N"
    return "\n".join(
        f"{command} {with_it}" if (command := _command(line, start, stopped)) else line for line in example.split("\n")
    )


def _command(line: str, start: str, stopped: str) -> str:
    return start if line.startswith(_START) else stopped if line.startswith(_STOPPED) else ""


def _words(words: Sequence[str]) -> str:
    return " ".join(_word(word) for word in words)


def _word(text: str) -> str:
    """Return a word of a command line (systemd.service(5), "Command lines": quotes, specifiers, variables)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
