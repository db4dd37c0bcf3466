"""Explanations of configuration errors: the key, the mistake, and the most similar known key."""

from __future__ import annotations

import copy
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zsnapdb.base.errors import ConfigError

S = TypeVar("S", bound=BaseModel)


def _section_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model of the section at `path` below `model`. In a table of sections, any name is accepted."""
    if not path:
        return model
    known = model.model_fields.get(str(path[0]))
    if known is None:
        return None
    annotation, rest = known.annotation, path[1:]
    if get_origin(annotation) is dict:
        annotation, rest = get_args(annotation)[1], rest[1:]
    elif get_origin(annotation) is tuple:
        annotation, rest = get_args(annotation)[0], rest[1:]
    elif get_origin(annotation) is UnionType:
        annotation = get_args(annotation)[0]
    return _section_at(annotation, rest) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _known_keys(settings: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the allowed keys of the section that contains the last element of `location`."""
    section = _section_at(settings, location[:-1])
    return [part.alias or name for name, part in section.model_fields.items()] if section is not None else []


def every_error(raw: Mapping[str, Any], settings: type[BaseModel]) -> list[ErrorDetails]:
    """Return all errors of a document for the model `settings`.

    The model compares the keys of a section only if each value is valid by itself. So invalid values are removed from a
    copy, and the rest is validated again. Errors of a section as a whole are ignored if it lost a value that way,
    because the lost value may be the only cause.
    """
    rest, errors, incomplete = copy.deepcopy(dict(raw)), dict[tuple[Any, ...], ErrorDetails](), set[tuple[Any, ...]]()
    while True:
        try:
            settings.model_validate(rest)
        except ValidationError as error:
            items = error.errors(include_url=False, include_context=False, include_input=False)
            fresh = [i for i in items if (i["loc"], i["msg"]) not in errors and i["loc"] not in incomplete]
            errors |= {(item["loc"], item["msg"]): item for item in fresh}
            taken = [item for item in fresh if _take_out(rest, item["loc"])]
            incomplete |= {item["loc"][:-1] for item in taken if item["type"] != "extra_forbidden"}
            if taken:
                continue
        return list(errors.values())


def _take_out(document: dict[str, Any], location: tuple[int | str, ...]) -> bool:
    """Remove the value at a location from a document. Return whether one existed that is no section or list."""
    table: Any = document
    for part in location[:-1]:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    if not location or not isinstance(table, dict) or isinstance(table.get(str(location[-1])), dict | list):
        return False
    return table.pop(str(location[-1]), None) is not None


def explain(errors: Iterable[ErrorDetails], settings: type[BaseModel]) -> tuple[str, str]:
    """Return the message and the hint (may be "") for errors of a document for the model `settings`."""
    lines, hints = [], []
    for item in errors:
        where = ".".join(str(part) for part in item["loc"]) or "(file)"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {where}")
            known = _known_keys(settings, item["loc"])
            near = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
            hints.append(f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(known)}")
        elif item["type"] == "missing":
            lines.append(f"missing key {where}")
        else:
            lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines), "; ".join(dict.fromkeys(hints))


def read_toml(text: str, name: str, example: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raise ConfigError with `name` and the example as hint if it is invalid."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}", hint=example) from error


def settings_in(text: str, name: str, model: type[S], example: str) -> S:
    """Return the settings in the TOML text. Raise ConfigError with `name` and all errors."""
    raw = read_toml(text, name, example)
    try:
        return model.model_validate(raw)
    except ValidationError:
        message, hint = explain(every_error(raw, model), model)
        raise ConfigError(f"{name}: {message}", hint=hint or example) from None
