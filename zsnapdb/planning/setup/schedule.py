"""The schedule: the unit of the agent for a host on which no package put one, or the lines for cron. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

UNIT = "zsnapdb-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
_START, _STOPPED = "ExecStart=", "ExecStopPost=-"
PACKAGED_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system")
"""Where packages put units (systemd.unit(5))."""
CRON_FOLDER = "/etc/cron.d"
_CRON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of cron has no folder with `zfs` (crontab(5), "PATH=/usr/bin:/bin")."""
_CRON_JOBS = (
    ("*/5 * * * *", ("binlog", "archive", "INSTANCE", "--once")),
    ("15 1 * * *", ("backup", "INSTANCE")),
    ("45 3 * * *", ("prune", "INSTANCE")),
    ("30 4 * * 6", ("verify", "INSTANCE")),
    ("30 5 * * 0", ("drill", "INSTANCE")),
    ("*/15 * * * *", ("reap",)),
    ("51 5 * * *", ("doctor", "INSTANCE")),
    ("23 * * * *", ("status", "--all", "--notify")),
)


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


def configuration_in(unit: str) -> str | None:
    """Return which configuration the agent of a unit reads; None if it names none."""
    for line in unit.split("\n"):
        if not line.startswith(_START):
            continue
        try:
            words = shlex.split(line.removeprefix(_START))
        except ValueError:
            return None
        if "--config" in words[:-1]:
            return words[words.index("--config") + 1].replace("%%", "%").replace("$$", "$")
    return None


def _command(line: str, start: str, stopped: str) -> str:
    return start if line.startswith(_START) else stopped if line.startswith(_STOPPED) else ""


def _words(words: Sequence[str]) -> str:
    return " ".join(_word(word) for word in words)


def cron_file(instance: str) -> str:
    """Return the file for the lines of this instance. cron leaves out names with other characters (cron(8))."""
    return f"{CRON_FOLDER}/zsnapdb-{re.sub('[^A-Za-z0-9_-]', '_', instance)}"


def cron_text(program: Sequence[str], instance: str, configuration: str) -> str:
    """Return the lines for a file of /etc/cron.d (crontab(5)): every job of this instance, with absolute paths."""
    lines = ["# Written by `zsnapdb setup`: cron runs all jobs. It mails errors and results that need a look to root."]
    lines += ["SHELL=/bin/sh", f"PATH={_CRON_PATH}"]
    for when, words in _CRON_JOBS:
        named = [instance if word == "INSTANCE" else word for word in words]
        command = shlex.join([*program, *named, "--config", configuration]).replace("%", "\\%")
        lines.append(f"{when} root {command} >/dev/null")
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """Return a word of a command line (systemd.service(5), "Command lines": quotes, specifiers, variables)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
