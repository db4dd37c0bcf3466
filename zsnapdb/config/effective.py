"""Settings in effect, and the origin of each. Secrets are never in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, SecretStr

from zsnapdb.base.program_start import is_secret_name
from zsnapdb.config.key_lines import KeyPath
from zsnapdb.config.section import HIDDEN
from zsnapdb.config.settings import Settings
from zsnapdb.config.written import metadata_of, toml, unit_of

_COMMANDS = ("run", "script", "command", "start", "stop")
"""Keys with a command, whose arguments may be secrets."""


class SettingOrigin(StrEnum):
    """Where the value of a setting is from."""

    FILE = "file"
    ENVIRONMENT = "environment"
    REPOSITORY = "repository"
    DEFAULT = "default"


@dataclass(frozen=True)
class EffectiveSetting:
    """A setting: its key, its value as TOML (None: not set), and its origin.

    `line` is its line in the configuration file. The value of a hidden setting is a secret, and is not in it.
    """

    key: str
    value: str | None
    origin: SettingOrigin
    line: int | None = None
    hidden: bool = False


def effective(settings: Settings, lines: Mapping[KeyPath, int]) -> Iterator[EffectiveSetting]:
    """Yield every setting in the order of the sections. `lines` are those of the values in the file."""
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
    """Yield the variables of zsnapdb that are set."""
    for name, value in sorted(variables.items()):
        if name.startswith("ZSNAPDB_"):
            hidden = is_secret_name(name)
            yield EffectiveSetting(name, None if hidden else toml(value), SettingOrigin.ENVIRONMENT, hidden=hidden)


def matching(settings: tuple[EffectiveSetting, ...], key: str) -> tuple[EffectiveSetting, ...]:
    """Return the settings of a key or table: by its whole name, or else by a part of the name."""
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
    """Return the line of a setting. Keys of the table `s3` may be next to `url`."""
    for sought in (path, (*path[:2], *path[3:]) if path[2:3] == ("s3",) and path[0] == "repository" else path):
        below = [line for known, line in lines.items() if known[: len(sought)] == sought]
        if below:
            return min(below)
    return None


def _inherited(path: KeyPath, settings: Settings) -> str:
    """Return the table of the default repository, for an instance without its own; "" if there is none."""
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
