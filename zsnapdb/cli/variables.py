"""The variables of the environment that stand for options: their names, and those that no option has."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from zsnapdb.base.errors import UsageError

PREFIX = "ZSNAPDB"
OTHERS = frozenset(
    f"{PREFIX}_{name}"
    for name in (
        *(
            "CONFIG",
            "RUN_ID",
            "SUBJECT",
            "SUBJECT_ISSUER",
            "MEANT_CLONE",
            "URL",
            "TOKEN",
            "LOG_LEVEL",
            "LOG_FORMAT",
            "JSON_PROGRESS",
            "ENDS_WITH",
        ),
        *("HOOK", "INSTANCE", "FLAVOUR", "BACKUP_ID", "LOCK", "SNAPSHOTS", "OUTCOME", "STATUS", "ERROR", "MESSAGE"),
        *("CLONE", "SOCKET", "DEFAULTS_FILE"),
    )
)
"""Variables that stand for no option of one command: of every command, and those that a hook is given."""
_LIKENESS = 0.85
"""How alike two names are when one may be meant by the other (difflib, ratio)."""


def name_variables(command: Any, prefix: str) -> None:
    """Let each option of a command be set by the variable that is named after it: `--wait` by `PREFIX_WAIT`.

    A name that follows from that of the option is not shown by help.
    """
    for parameter in getattr(command, "params", ()):
        if parameter.param_type_name != "option":
            continue
        parameter.show_envvar = parameter.envvar is not None
        if parameter.envvar is None and parameter.allow_from_autoenv:
            long = next(name for name in parameter.opts if name.startswith("--"))
            parameter.envvar = f"{prefix}_{_word(long.removeprefix('--'))}"
        parameter.allow_from_autoenv = False


def command_prefix(group_prefix: str, command: str) -> str:
    """Return what the variables of a command's options begin with."""
    return f"{group_prefix}_{_word(command)}"


def _word(name: str) -> str:
    return name.replace("-", "_").upper()


def refuse_unknown(environment: Mapping[str, str], tree: Any) -> None:
    """Raise UsageError if a variable reads as one of ours and stands for no option: it would be ignored in silence.

    It reads so if it begins with the name of a command, or nearly has a name that is known. Others may be anybody's:
    orchestrators make names such as ZSNAPDB_VERSION. `tree` is the group of all commands, built when it is needed.
    """
    ours = sorted(name for name in environment if name.startswith(f"{PREFIX}_") and name not in OTHERS)
    if not ours:
        return
    root = tree()
    known = {*OTHERS, *(name for command in commands(root) for name in variables_of(command))}
    beginnings = tuple(f"{command_prefix(PREFIX, name)}_" for name in root.commands)
    for name in ours:
        meant = nearest(name, known)
        if name not in known and (meant or name.startswith(beginnings)):
            hint = f"{meant} may be meant" if meant else "`zsnapdb COMMAND --help` lists the options"
            raise UsageError(f"the environment has {name}, and no option has this variable", hint=f"{hint}; unset it")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that may be meant, None if none is like it."""
    begin = len(PREFIX) + 1
    close = difflib.get_close_matches(name[begin:], [one[begin:] for one in known], 1, _LIKENESS)
    return f"{PREFIX}_{close[0]}" if close else None


def commands(group: Any, prefix: str = PREFIX) -> Iterator[Any]:
    """Yield every command below the group, its options with their variables."""
    for name, command in group.commands.items():
        here = command_prefix(prefix, name)
        if hasattr(command, "commands"):
            yield from commands(command, here)
        else:
            name_variables(command, here)
            yield command


def variables_of(command: Any) -> Iterator[str]:
    """Yield the variables of a command's options."""
    for parameter in command.params:
        if isinstance(parameter.envvar, str):
            yield parameter.envvar
