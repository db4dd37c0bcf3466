"""The unit of the agent for a host on which no package put one. Pure."""

from __future__ import annotations

UNIT = "zsnapdb-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
_START = "ExecStart="


def unit_text(example: str, program: str, configuration: str) -> str:
    """Return the unit that runs this program with this configuration; all else is that of the example."""
    command = f"{_START}{_word(program)} agent --config {_word(configuration)}"
    return "\n".join(command if line.startswith(_START) else line for line in example.split("\n"))


def _word(text: str) -> str:
    """Return a word of a command line (systemd.service(5), "Command lines": quotes, specifiers, variables)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
