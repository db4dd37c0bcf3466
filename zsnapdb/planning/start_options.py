"""The program and arguments of a systemd unit, and the options that a server program refuses. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.patterns import printable

_EXEC_START = re.compile(r"path=(/\S+) ; argv\[\]=(.*?) ; ")
_SERVER_PROGRAM = re.compile(r".*/(mysqld|mariadbd)([.-][A-Za-z0-9._-]+)?")
_HARMLESS = re.compile(r"\[(Warning|Note|System)\]")
_REFUSED = re.compile(
    r"unknown (?:variable|option) '[^'=]*|ambiguous option '[^'=]*|option '[^']*' (?:requires|cannot take) an argument"
    r"|Error while setting value '[^']*' to '[^']*|Character set '[^']*' is not a compiled character set"
)
_FATAL_PLUGIN = "Parsing options for plugin 'InnoDB' failed"
_KEPT = 5


OPTIONS_HINT = "correct the option files of the server; the data are not the cause"


def describe_refused(refused: Sequence[str]) -> str:
    """Return a text with the errors of a server program about its options."""
    return f"the server cannot start, because its program refuses its options: {', '.join(refused)}"


@dataclass(frozen=True)
class ServerStart:
    """The server program and the arguments with which a server will be started."""

    program: str
    arguments: tuple[str, ...]


def parse_exec_start(shown: str) -> ServerStart | None:
    """Return the command in the property ExecStart of a unit, as `systemctl show` prints it.

    Arguments from environment variables are omitted. The result is None if the unit starts a script.
    """
    found = _EXEC_START.search(shown)
    if found is None or not _SERVER_PROGRAM.fullmatch(found[1]):
        return None
    return ServerStart(found[1], tuple(word for word in found[2].split()[1:] if not word.startswith("$")))


def refused_options(status: int, output: str, check: Sequence[str]) -> tuple[str, ...]:
    """Return the errors about options in the output of a server program that only checked its options.

    The program was started with the options `check`. An older program does not know them, which is no error of the
    server's options. Other errors are ignored, because they may only concern the check, such as an unreadable file.
    """
    if status == 0 and _FATAL_PLUGIN not in output:
        return ()
    lines = [line for line in output.split("\n") if not _HARMLESS.search(line)]
    found = [match[0] for match in map(_REFUSED.search, lines) if match is not None]
    # The name ends before the value, which may be a secret.
    whole = [f"{text.rstrip()}'" if text.count("'") % 2 else text for text in found]
    wanted = [text for text in whole if text.split("'")[1] not in check]
    return tuple(dict.fromkeys(map(printable, wanted)))[:_KEPT]
