"""The lines and statements by which a server on a copy gets the settings of its source. Pure.

The values come from a repository or from a snapshot's property, which others can write. Each value must have the form
of its variable, and each line is one option: an option file ends an option at a line break, a value at `#`, and it
breaks lines that are longer than its buffer (mysys/my_default.c of both families).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import PreflightError
from zsnapdb.base.model import Flavour
from zsnapdb.base.patterns import is_line
from zsnapdb.planning.family import family
from zsnapdb.planning.server_copy.encryption import KEY_VARIABLES, missing_options
from zsnapdb.planning.server_copy.origin import RECORDED
from zsnapdb.planning.server_copy.variables import VariableClass, class_of, is_name, is_secret

LONGEST_LINE = 4000
"""Bytes of an option file's line. The servers read it into a buffer of 4096 bytes."""

_STRICT = frozenset(name for flavour in Flavour for name in family(flavour).strict_variables)
_PLAIN = re.compile(r"[A-Za-z0-9_,.+:=@-]*")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*|[+-][0-9]{1,2}:[0-9]{2}")
_TABLE = re.compile(r"[^/.\\\x00-\x1f]+/[^/.\\\x00-\x1f]+|")
_FORMS = {
    "time_zone": _ZONE,
    "innodb_ft_server_stopword_table": _TABLE,
    "innodb_ft_user_stopword_table": _TABLE,
}
_TEXTS = frozenset(
    (
        "authentication_policy",
        "date_format",
        "datetime_format",
        "default_regex_flags",
        "ft_boolean_syntax",
        "init_connect",
        "mandatory_roles",
        "session_track_system_variables",
        "time_format",
    )
)
"""Variables whose value is any text in one line."""

OPTIONS = {
    "time_zone": "default_time_zone",
    "tx_isolation": "transaction_isolation",
    "storage_engine": "default_storage_engine",
}
"""The option that sets a variable, where it has another name."""

_OWN = frozenset((VariableClass.PATH, VariableClass.IDENTITY, VariableClass.NETWORK, VariableClass.ACCESS))
"""Each copy has its own paths, identity and network, and accepts writes: a plan need not say it."""

_LISTS = {"ignore_db_dirs": ("ignore_db_dirs", "ignore_db_dir")}
"""Options that are given once for each part of the value. Their name differs between families."""


def option_lists() -> frozenset[str]:
    """Return the variables whose option is given once for each part of the value."""
    return frozenset(_LISTS)


@dataclass(frozen=True)
class LeftOut:
    """A setting of the source that a copy does not have, and the reason."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value[:80]!r}: {self.reason}"


def _objection(name: str, value: str) -> str | None:
    """Return why the value cannot be given to a server; None if it can."""
    if not is_line(value):
        return "its value has several lines or control characters"
    if name in _TEXTS:
        return None
    if _FORMS.get(name, _PLAIN).fullmatch(value) is None:
        return "its value has characters that no value of this variable has"
    return None


def _quoted(value: str) -> str:
    """Return the value as an option file needs it: plain, or in quotes with escapes."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _line(prefix: str, name: str, value: str) -> str:
    return f"{prefix}{name}={_quoted(value)}"


def _kept(variables: Mapping[str, str]) -> Iterator[tuple[str, str, VariableClass]]:
    """Yield each recorded setting of a kept class."""
    for name, value in sorted(variables.items()):
        if not is_name(name) or name in KEY_VARIABLES:  # The site's own lines load the keys.
            continue
        kind = class_of(name)
        if kind.is_kept and not is_secret(name):
            yield name, value, kind


def kept_lines(flavour: Flavour, variables: Mapping[str, str], options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the lines of an option file for the settings of the source.

    `options` are the site's own lines (server.options), which may load the source's keys.

    Raises:
        PreflightError: a variable that the files depend on has a value that no server gives it
    """
    lines = []
    for name, value, kind in _kept(variables):
        reason = _reason(name, value, kind, variables, options)
        if reason is not None or kind is VariableClass.STATEMENT:
            continue
        prefix = "" if name in family(flavour).strict_variables else "loose_"
        if name in _LISTS:
            parts = [part for part in value.split(",") if part]
            lines += [_line("loose_", option, part) for part in parts for option in _LISTS[name]]
        else:
            lines.append(_line(prefix, OPTIONS.get(name, name), value))
    return tuple(lines)


def _reason(
    name: str, value: str, kind: VariableClass, variables: Mapping[str, str], options: Sequence[str]
) -> str | None:
    """Return why a copy does not get this setting of a kept class; None if it gets the setting."""
    objection = _objection(name, value)
    if objection is not None and name in _STRICT:
        raise PreflightError(
            f"the backup says that the server had {name} = {value[:80]!r}, which no server has",
            hint="the manifest was altered; restore another backup, see `zsnapdb list`",
        )
    if objection is None and len(_line("loose_", name, value).encode()) > LONGEST_LINE:
        objection = f"its line would be longer than {LONGEST_LINE} bytes, which an option file cannot have"
    if objection is None and kind is VariableClass.ENCRYPTION and missing_options(variables, options):
        return "the options that load the source's keys are not in server.options"
    return objection


def kept_statements(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the statements that a server runs at its start for settings that no option sets."""
    return tuple(
        f"SET GLOBAL {name} = {value if value.isdecimal() else repr(value)};"
        for name, value, kind in _kept(variables)
        if kind is VariableClass.STATEMENT and _PLAIN.fullmatch(value) and value
    )


def left_out(variables: Mapping[str, str], options: Sequence[str] = ()) -> tuple[LeftOut, ...]:
    """Return the recorded settings that a copy does not have, with the reason for each."""
    missing = []
    for name, value in sorted(variables.items()):
        kind = class_of(name)
        if not kind.is_setting:
            continue
        reason = _reason(name, value, kind, variables, options) if kind.is_kept else kind.value
        if reason is not None:
            missing.append(LeftOut(name, value, reason))
    return tuple(missing)


def notes_on(variables: Mapping[str, str], options: Sequence[str], zones: Sequence[str] | None) -> tuple[str, ...]:
    """Return for a plan what a copy has not of its source's settings, one line for each reason.

    `options` are the site's own lines, `zones` the names that this host's time zone has (None: the zone of the source
    is recorded, and judged by `planning/time_zone.py`). Variables that are always recorded are not named, nor those of
    classes of which every copy has its own values (`_OWN`).
    """
    reasons: dict[str, list[str]] = {}
    for out in left_out(variables, options):
        kind = class_of(out.name)
        is_own = kind in _OWN or (out.name in RECORDED and not kind.is_kept)
        if not is_own and not any(option_name(line) == out.name for line in options):
            reasons.setdefault(out.reason, []).append(out.name)
    notes = [f"not from the source: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    source = variables.get("system_time_zone", "")
    if zones is not None and variables.get("time_zone") == "SYSTEM" and source and source not in zones:
        notes.append(
            f"the source showed times in the zone {source} of its host, this host has {'/'.join(zones)}: set"
            " default_time_zone in server.options to show the same local times"
        )
    return tuple(notes)


def option_name(line: str) -> str:
    """Return the name of the variable that a line of an option file sets."""
    return line.partition("=")[0].strip().lower().replace("-", "_").removeprefix("loose_")
