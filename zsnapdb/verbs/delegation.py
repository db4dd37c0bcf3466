"""Parser of requests about clones from users without root rights.

`COMMANDS` and `SERVED` in `requests.py` define the requests.

`zsnapdb-clone`, which sudo runs as root, and the helper of `zsnapdb serve` use this parser. All input is treated as
hostile. Only declared arguments are accepted, no argument can be shortened, and each value must match a pattern. No
option accepts a file, a program, an address or an owner. The calling code sets the user, and no input can change the
user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import UsageError
from zsnapdb.base.pattern_words import allowed
from zsnapdb.verbs.requests import COMMANDS, FORMER_NAMES, DelegatedCommand


@dataclass(frozen=True)
class DelegatedRequest:
    """An accepted command line: its command, its clone ("" if there is none), and the arguments for zsnapdb."""

    command: str
    clone: str
    words: tuple[str, ...]

    @property
    def source(self) -> str:
        """The snapshot set for the new clone; "" if no snapshot set is given."""
        return next((word.removeprefix("--from=") for word in self.words if word.startswith("--from=")), "")

    @property
    def guid(self) -> str | None:
        """The GUID of the only clone that the command may use; None if no GUID is given."""
        return next((word.removeprefix("--guid=") for word in self.words if word.startswith("--guid=")), None)

    @property
    def wants_login_file(self) -> bool:
        """Whether the login is written to a file of the caller."""
        if self.command == "create":
            return not {"--plan", "--no-start"} & set(self.words)
        return self.command == "login" and not {"--dsn", "--env", "--json"} & set(self.words)


def usage() -> str:
    """Return the help text with all commands."""
    lines = ["Usage: zsnapdb-clone COMMAND, one of:"]
    for name, command in COMMANDS.items():
        options = [option if form is None else f"{option}=VALUE" for option, form in command.accepted.items()]
        lines.append(f"  {' '.join((name, *command.words, *(f'[{option}]' for option in options)))}")
        lines.append(f"      {command.help}")
    return "\n".join(lines)


def parse(argv: Sequence[str], caller: str, commands: Mapping[str, DelegatedCommand] = COMMANDS) -> DelegatedRequest:
    """Return the command line that zsnapdb runs for this caller.

    Raises:
        UsageError: an argument is unknown, invalid or missing.
    """
    asked = FORMER_NAMES.get(argv[0], argv[0]) if argv else ""
    command = commands.get(asked)
    if command is None:
        raise UsageError(f"unknown command {argv[0]!r}" if argv else "no command is given", hint=usage())
    values: dict[str, str] = {}
    options: dict[str, str] = {}
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            if name not in command.accepted:
                raise UsageError(f"unknown option {name!r} of {argv[0]}", hint=usage())
            form = command.accepted[name]
            if form is not None and not equals:
                value = rest.pop(0) if rest else ""
            if (form is None and equals) or (form is not None and form.fullmatch(value) is None):
                said = f": it {allowed(form.pattern)}" if form is not None else ""
                raise UsageError(f"invalid value {value!r} of {name}{said}", hint=usage())
            options[name] = name if form is None else f"{name}={value}"
        else:
            expected = next((name for name in command.words if name not in values), None)
            if expected is None:
                raise UsageError(f"invalid word {word!r}", hint=usage())
            if command.words[expected].fullmatch(word) is None:
                said = allowed(command.words[expected].pattern)
                raise UsageError(f"invalid {expected} {word!r}: it {said}", hint=usage())
            values[expected] = word
    missing = [name for name in command.words if name not in values and not name.startswith("[")]
    if missing:
        raise UsageError(f"{missing[0]} is missing", hint=usage())
    own = [f"--name={values['NAME']}", f"--owner={caller}"] if asked == "create" else []
    positional = [value for name, value in values.items() if name != "NAME" or asked != "create"]
    return DelegatedRequest(
        asked, values.get("NAME", ""), (*command.runs.split(), *own, *options.values(), *positional)
    )
