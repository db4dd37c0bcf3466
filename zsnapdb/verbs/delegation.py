"""What people without root may ask for about clones: words, options, the form of each value, and the command of each.

One table for `zsnapdb-clone`, which sudo runs as root, and for the helper of `zsnapdb serve`. Whatever they pass is
hostile: only these words are known, no word can be shortened, each value has a pattern, and no option names a file, a
program, an address or an owner. Whoever asks is named by the caller, never by the words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from zsnapdb.base.errors import UsageError
from zsnapdb.verbs.values import (
    BRANCH,
    BYTES,
    CLONE,
    DURATION,
    INSTANCE_NAME,
    LINES,
    MESSAGE,
    POINT,
    PROFILE,
    ROWS,
    SOURCE,
)

_FLAG = None


@dataclass(frozen=True)
class DelegatedCommand:
    """A command for people without root: what it runs, its words in order, its options, the form of each value.

    A word in brackets may be left out.
    """

    runs: str
    help: str
    words: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    options: Mapping[str, re.Pattern[str] | None] = field(default_factory=dict)


_NAME = {"NAME": CLONE}
_BRANCH = {**_NAME, "BRANCH": BRANCH}
_SHOWN: Mapping[str, re.Pattern[str] | None] = {"--json": _FLAG}
_PLANNED: Mapping[str, re.Pattern[str] | None] = {"--plan": _FLAG, "--json": _FLAG}
_CREATE: Mapping[str, re.Pattern[str] | None] = {
    "--from": SOURCE,
    "--at": POINT,
    "--ttl": DURATION,
    "--heartbeat": DURATION,
    "--profile": PROFILE,
    "--mask": _FLAG,
    "--no-start": _FLAG,
    **_PLANNED,
}
COMMANDS: Mapping[str, DelegatedCommand] = {
    "create": DelegatedCommand(
        "clone create", "make a clone of an instance", {"INSTANCE": INSTANCE_NAME, "NAME": CLONE}, _CREATE
    ),
    "list": DelegatedCommand("clone list", "list your clones", {}, _SHOWN),
    "login": DelegatedCommand(
        "clone connect",
        "write a file with the login that only you can read, or print the login",
        _NAME,
        {"--dsn": _FLAG, "--env": _FLAG, **_SHOWN},
    ),
    "start": DelegatedCommand("clone start", "start its server", _NAME, _PLANNED),
    "stop": DelegatedCommand("clone stop", "stop its server", _NAME, _PLANNED),
    "reset": DelegatedCommand("clone reset", "give it its first data again", _NAME, {"--from": SOURCE, **_PLANNED}),
    "extend": DelegatedCommand("clone extend", "extend its lease", _NAME, {"--ttl": DURATION, **_PLANNED}),
    "beat": DelegatedCommand("clone beat", "say that you still use it", _NAME, _SHOWN),
    "hold": DelegatedCommand("clone hold", "hold it for a program, which asks for resets on stdin", _NAME, _SHOWN),
    "destroy": DelegatedCommand("clone destroy", "destroy it", _NAME, _PLANNED),
}

SERVED: Mapping[str, DelegatedCommand] = {
    **COMMANDS,
    # How much a clone may write is for the helper to say, and for nobody who asks.
    "create": replace(COMMANDS["create"], options={**_CREATE, "--quota": BYTES}),
    "protect": DelegatedCommand(
        "clone protect", "keep it from `zsnapdb reap` for a time; 0s ends that", _NAME, {"--for": DURATION, **_PLANNED}
    ),
    "commit": DelegatedCommand(
        "clone commit", "keep its present state, for clones of it", _NAME, {"--message": MESSAGE, **_PLANNED}
    ),
    "logs": DelegatedCommand("clone logs", "show the end of its server's log", _NAME, {"--lines": LINES, **_SHOWN}),
    "branch.list": DelegatedCommand("clone branch list", "list its branches", _NAME, _SHOWN),
    "branch.log": DelegatedCommand(
        "clone branch log", "list the commits of a branch", {**_NAME, "[OF]": BRANCH}, _SHOWN
    ),
    "branch.create": DelegatedCommand("clone branch create", "begin a branch", _BRANCH, {"--from": BRANCH, **_PLANNED}),
    "branch.switch": DelegatedCommand("clone branch switch", "give it another branch", _BRANCH, _PLANNED),
    "branch.diff": DelegatedCommand(
        "clone branch diff",
        "compare two of its states",
        {**_NAME, "BEFORE": BRANCH, "AFTER": BRANCH},
        {"--limit": ROWS, "--size": BYTES, **_SHOWN},
    ),
    "branch.delete": DelegatedCommand("clone branch delete", "forget a branch", _BRANCH, _PLANNED),
}
"""What the helper of `zsnapdb serve` runs, whose limits hold for these too."""


@dataclass(frozen=True)
class DelegatedRequest:
    """A command line that may be run: its command, the clone that it is about ("" if none), the words for zsnapdb."""

    command: str
    clone: str
    words: tuple[str, ...]

    @property
    def source(self) -> str:
        """The snapshot set that the clone is to be made of; "" if none is named."""
        return next((word.removeprefix("--from=") for word in self.words if word.startswith("--from=")), "")

    @property
    def wants_login_file(self) -> bool:
        """Whether the login is to be written to a file of the caller."""
        if self.command == "create":
            return not {"--plan", "--no-start"} & set(self.words)
        return self.command == "login" and not {"--dsn", "--env", "--json"} & set(self.words)


def usage() -> str:
    """Return what the program can be asked for."""
    lines = ["Usage: zsnapdb-clone COMMAND, one of:"]
    for name, command in COMMANDS.items():
        options = [option if form is None else f"{option}=VALUE" for option, form in command.options.items()]
        lines.append(f"  {' '.join((name, *command.words, *(f'[{option}]' for option in options)))}")
        lines.append(f"      {command.help}")
    return "\n".join(lines)


def parse(argv: Sequence[str], caller: str, commands: Mapping[str, DelegatedCommand] = COMMANDS) -> DelegatedRequest:
    """Return the command line that zsnapdb runs for this caller. UsageError if a word of it is not known."""
    command = commands.get(argv[0]) if argv else None
    if command is None:
        raise UsageError(f"unknown command {argv[0]!r}" if argv else "no command is given", hint=usage())
    values: dict[str, str] = {}
    options: dict[str, str] = {}
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            if name not in command.options:
                raise UsageError(f"unknown option {name!r} of {argv[0]}", hint=usage())
            form = command.options[name]
            if form is not None and not equals:
                value = rest.pop(0) if rest else ""
            if (form is None and equals) or (form is not None and form.fullmatch(value) is None):
                raise UsageError(f"invalid value {value!r} of {name}", hint=usage())
            options[name] = name if form is None else f"{name}={value}"
        else:
            expected = next((name for name in command.words if name not in values), None)
            if expected is None or command.words[expected].fullmatch(word) is None:
                raise UsageError(f"invalid {expected or 'word'} {word!r}", hint=usage())
            values[expected] = word
    missing = [name for name in command.words if name not in values and not name.startswith("[")]
    if missing:
        raise UsageError(f"{missing[0]} is missing", hint=usage())
    own = [f"--name={values['NAME']}", f"--owner={caller}"] if argv[0] == "create" else []
    positional = [value for name, value in values.items() if name != "NAME" or argv[0] != "create"]
    return DelegatedRequest(
        argv[0], values.get("NAME", ""), (*command.runs.split(), *own, *options.values(), *positional)
    )
