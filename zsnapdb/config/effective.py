"""The settings in effect: each setting's origin, value (as users write it) and line.

Secrets are never included.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from enum import Enum, StrEnum
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo

from zsnapdb.base import quantities
from zsnapdb.base.program_start import is_secret_name
from zsnapdb.config.services import HIDDEN
from zsnapdb.config.settings import Settings

KeyPath = tuple[str | int, ...]
"""The path of a value: the names of its tables, and then its key.

A number is an index (from 0) in an array of tables.
"""


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return, for each value in a TOML document, the first line (from 1) of the value's statement.

    The text is valid TOML. Each statement is parsed separately, below the header of its table.
    """
    found: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            start = number
        statement += f"{line}\n"
        parsed = _parsed(statement)
        if parsed is None:
            continue
        if statement.lstrip().startswith("["):
            table = _table(parsed, statement, counts)
        else:
            found |= {(*table, *path): start for path in _leaf_paths(parsed) if path}
        statement = ""
    return found


def _parsed(statement: str) -> dict[str, Any] | None:
    """Return the tables of a statement; None if the value of the statement continues on the next line."""
    try:
        return tomllib.loads(statement)
    except tomllib.TOMLDecodeError:
        return None


def _table(parsed: Mapping[str, Any], statement: str, counts: dict[KeyPath, int]) -> KeyPath:
    """Return the path of the table that this header starts. `counts`: the number of tables in each array so far."""
    path: KeyPath = ()
    inner: Any = parsed
    while inner:
        ((name, inner),) = inner.items()
        path = (*path, name)
        if isinstance(inner, list):
            inner = inner[0]
        is_new = not inner and statement.lstrip().startswith("[[")
        if is_new:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _leaf_paths(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of each value that is neither a table nor a list of tables."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _leaf_paths(below, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for index, below in enumerate(value):
            yield from _leaf_paths(below, (*path, index))
    else:
        yield path


UNITS: dict[Any, str] = {
    quantities._size: "size",
    quantities._duration: "duration",
    quantities._level: 'a number, or "auto"',
}
"""The kind of a quantity, by the function that converts the quantity."""
_TIMES = (("w", 7 * 86400), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def metadata_of(field: FieldInfo) -> list[Any]:
    """Return the constraints of a setting's value, even if the value is optional."""
    every = list(field.metadata)
    for part in get_args(field.annotation):
        if get_origin(part) is Annotated:
            for item in get_args(part)[1:]:
                every += item.metadata if isinstance(item, FieldInfo) else [item]
    return every


def unit_of(field: FieldInfo) -> str:
    """Return the value's kind of quantity (see UNITS); "" if the value is not a quantity."""
    units = [UNITS.get(item.func) for item in metadata_of(field) if isinstance(item, BeforeValidator)]
    return next((unit for unit in units if unit), "")


def quantity(value: Any, unit: str) -> str:
    """Return a default or a limit without quotes, as users write it in the configuration."""
    if unit in ("size", "duration") and isinstance(value, int | float) and value:
        for name, length in _SIZES if unit == "size" else _TIMES:
            if value % length == 0:
                return f"{int(value // length)}{name}"
        return f"{value:g}s" if unit == "duration" else f"{value}B"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def toml(value: Any, unit: str = "") -> str:
    """Return the value in TOML notation."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return toml(value.value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml(one, unit)}' for key, one in value.items())} }}" if value else "{}"
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return f"[{', '.join(toml(one, unit) for one in value)}]"
    if isinstance(value, int | float):
        number = quantity(value, unit)
        return number if unit not in ("size", "duration") or not value else f'"{number}"'
    return value.isoformat() if isinstance(value, date) else json.dumps(str(value), ensure_ascii=False)


_COMMANDS = ("run", "script", "command", "start", "stop")
"""Keys whose value is a command. The arguments of a command may be secrets."""


class SettingOrigin(StrEnum):
    """Origin of a setting's value."""

    FILE = "file"
    ENVIRONMENT = "environment"
    REPOSITORY = "repository"
    DEFAULT = "default"


@dataclass(frozen=True)
class EffectiveSetting:
    """A setting: its key, its value in TOML notation (None if not set), and its origin.

    The field `line` is the setting's line in the configuration file. If the value of a setting is a secret, it is
    omitted.
    """

    key: str
    value: str | None
    origin: SettingOrigin
    line: int | None = None
    hidden: bool = False


def effective(settings: Settings, lines: Mapping[KeyPath, int]) -> Iterator[EffectiveSetting]:
    """Yield every setting in the order of the sections. `lines` contains the line of each value in the file."""
    for path, value, field in _leaves(settings, ()):
        line = _line(path, lines)
        origin = SettingOrigin.FILE if line is not None else SettingOrigin.DEFAULT
        hidden = HIDDEN in metadata_of(field) or "SecretStr" in str(field.annotation)
        if hidden and value:
            yield EffectiveSetting(_setting_name(path), None, origin, line, hidden=True)
        elif value is None and (inherited := _inherited(path, settings)):
            yield EffectiveSetting(_setting_name(path), inherited, SettingOrigin.REPOSITORY)
        else:
            yield EffectiveSetting(_setting_name(path), _value(path, value, unit_of(field)), origin, line)


def environment(variables: Mapping[str, str]) -> Iterator[EffectiveSetting]:
    """Yield the environment variables of zsnapdb that are set."""
    for name, value in sorted(variables.items()):
        if name.startswith("ZSNAPDB_"):
            hidden = is_secret_name(name)
            yield EffectiveSetting(name, None if hidden else toml(value), SettingOrigin.ENVIRONMENT, hidden=hidden)


def matching(settings: tuple[EffectiveSetting, ...], key: str) -> tuple[EffectiveSetting, ...]:
    """Return the settings whose whole key or table is `key`.

    If none match, return the settings whose key contains `key`.
    """
    whole = tuple(one for one in settings if f"{one.key}.".replace("[", ".").startswith(f"{key}."))
    return whole or tuple(one for one in settings if f".{key}." in f".{one.key}.".replace("[", "."))


def _leaves(model: BaseModel, path: KeyPath) -> Iterator[tuple[KeyPath, Any, Any]]:
    for name, field in type(model).model_fields.items():
        here, value = (*path, field.alias or name), getattr(model, name)
        below: Mapping[Any, Any] = value if isinstance(value, dict) else {}
        if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            below = dict(enumerate(value))
        if isinstance(value, BaseModel):
            yield from _leaves(value, here)
        elif below and all(isinstance(one, BaseModel) for one in below.values()):
            for key, one in below.items():
                yield from _leaves(one, (*here, key))
        else:
            yield here, value, field


def _line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of a setting.

    A setting of the table `s3` may also be directly in the repository's table.
    """
    for sought in (path, (*path[:2], *path[3:]) if path[2:3] == ("s3",) and path[0] == "repository" else path):
        below = [line for known, line in lines.items() if known[: len(sought)] == sought]
        if below:
            return min(below)
    return None


def _inherited(path: KeyPath, settings: Settings) -> str:
    """Return the table of the default repository if the instance has no repository of its own; else ""."""
    if path[0] != "instance" or path[2:] != ("keep",):
        return ""
    repository = settings.instance[str(path[1])].repository
    return f"repository.{repository}.keep" if settings.repository[repository].keep is not None else ""


def _setting_name(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _value(path: KeyPath, value: Any, unit: str) -> str | None:
    if value is None or isinstance(value, SecretStr):
        return None
    if path[-1] in _COMMANDS and isinstance(value, tuple):
        value = tuple(_program(one) if isinstance(one, tuple) else one for one in value)
        value = value if any(isinstance(one, tuple) for one in value) else _program(value)
    return toml(value, unit)


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command without its arguments."""
    return (command[0], "...") if len(command) > 1 else command
