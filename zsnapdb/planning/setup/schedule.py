"""The unit of the agent for a host on which no package put one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

UNIT = "zsnapdb-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
_START = "ExecStart="


def unit_text(example: str, program: Sequence[str], configuration: str) -> str:
    """Return the unit that runs this program with this configuration; all else is that of the example.

    `program` are the words that start zsnapdb; the first one is an absolute path.
    """
    words = (*program, "agent", "--config", configuration)
    command = f"{_START}{' '.join(_word(word) for word in words)}"
    return "\n".join(command if line.startswith(_START) else line for line in example.split("\n"))


def _word(text: str) -> str:
    """Return a word of a command line (systemd.service(5), "Command lines": quotes, specifiers, variables)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
