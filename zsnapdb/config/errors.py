"""Explanations of configuration errors: the key, the mistake, and the most similar known key."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zsnapdb.base.errors import ConfigError
from zsnapdb.base.quantities import WRITTEN
from zsnapdb.config.toml_errors import read_toml

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
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _section_at(annotation, rest)
    return None


_OTHER_WORDS = {
    r"(local_)?retention.*|keep_?(last|hourly|daily|weekly|monthly|yearly|within)": (
        "retention is `keep = { daily = 14 }` of a repository or instance"
    ),
    r"(aws_|s3_)?(access_key|secret_(access_)?key)(_id)?": (
        "the keys of S3 are in the file that `s3.credentials_file` names"
    ),
    r"schedules?|cron|backup_(schedule|time|every)": (
        'schedules are in the table agent of an instance: `agent.backup = { cron = "0 3 * * *" }`'
    ),
    r"archive(_binlogs?)?|binlog_archive|pitr": "`agent.archive = true` of an instance archives its binlogs",
    r"datasets?|data_?dir|zfs|pool_name": (
        'datasets are `volumes = { parent = "tank/mysql", data = "tank/mysql/data" }` of an instance'
    ),
    r"bucket|prefix|path|folder|type": (
        'the address of a repository is `url = "s3://bucket/prefix"` or `url = "file:///folder"`'
    ),
    r"(s3_)?((use|force)_)?path_style(_\w+)?|url_style": (
        '`s3.addressing = "path"` of a repository is path style, `"virtual"` is virtual-hosted style'
    ),
    r"pass(word|wd)?": "a password is in the file that `password_file` names",
    r"compress(ion|or)?(_level)?": "compression is `stream = { level = 3 }` of a repository",
    r"e?mail|slack|webhook|notify|notification|alerts?": (
        'receivers are tables: `[notifications.to.ops]` with `email = ["dba@example.com"]` or `webhook = "https://..."`'
    ),
    r"(bw|rate|upload)_?limit|throttle": '`bandwidth = "20MiB"` of a repository limits the bytes sent in a second',
}
"""Words that other programs and people use for settings, as patterns, and how a setting is written here."""

_TABLES = {
    "volumes": 'must be a table, such as `volumes = { parent = "tank/mysql", data = "tank/mysql/data" }`',
    "instance": "must be a table for each instance, such as `[instance.main]`",
    "repository": "must be a table for each repository, such as `[repository.s3]`",
}

_KINDS = {
    "bool_type": "must be true or false, without quotes",
    "bool_parsing": "must be true or false, without quotes",
    "string_type": 'must be a text in quotes, such as "main"',
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "tuple_type": 'must be a list, such as ["one", "two"]',
    "path_type": "must be a path in quotes",
    "date_from_datetime_parsing": "must be a day, such as 2027-01-31",
}
"""The required type of a value in words, by the kind of pydantic's error."""


def _plain(item: ErrorDetails, settings: type[BaseModel]) -> str:
    """Return the fault of a value, in the words of a configuration."""
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        section, key = _section_at(settings, item["loc"]), item["loc"][-1]
        if section is None or len(item["loc"]) == 1:
            return _TABLES.get(str(key), "must be a table")
        return f"must be a table, such as `{key} = {getattr(section, 'example', '{ ... }')}`"
    text = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return _KINDS.get(item["type"], text)


def _hint(location: tuple[int | str, ...], settings: type[BaseModel]) -> str:
    """Return how a setting with an unknown name is written: by its meaning, a similar name, or its other place."""
    key, known = str(location[-1]), _known_keys(settings, location)
    for pattern, advice in _OTHER_WORDS.items():
        is_here = set(re.findall(r"`(\w+_file)`", advice)) <= {*known}
        if is_here and re.fullmatch(pattern, key, re.IGNORECASE):
            return advice
    if near := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return f"did you mean {near[0]!r}?"
    if places := list(_places(settings, key)):
        return f"{key} is a key of {', '.join(places[:3])}"
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(known)}"


def _places(model: type[BaseModel], key: str, path: str = "") -> Iterator[str]:
    """Yield the tables below `model` that have the key."""
    for name, field in model.model_fields.items():
        if name == key and path:
            yield path
        named = get_origin(field.annotation) is dict
        if section := _section_at(model, (name, "NAME") if named else (name,)):
            yield from _places(section, key, ".".join(filter(None, (path, name, "NAME" if named else ""))))


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
            settings.model_validate(rest, context=WRITTEN)
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
    """Return the message and the hint (may be "") for errors of a document for the model `settings`.

    Unknown keys are first: a missing key may be one of them with another name.
    """
    lines, hints = [], []
    for item in sorted(errors, key=lambda one: one["type"] != "extra_forbidden"):
        where = ".".join(str(part) for part in item["loc"]) or "(file)"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown key {where}")
            hints.append(_hint(item["loc"], settings))
        elif item["type"] == "missing":
            lines.append(f"missing key {where}")
        else:
            lines.append(f"{where}: {_plain(item, settings)}")
    return "; ".join(lines), "; ".join(dict.fromkeys(hints))


def settings_in(text: str, name: str, model: type[S], example: str) -> S:
    """Return the settings in the TOML text. Raise ConfigError with `name` and all errors."""
    raw = read_toml(text, name)
    try:
        return model.model_validate(raw, context=WRITTEN)
    except ValidationError:
        message, hint = explain(every_error(raw, model), model)
        raise ConfigError(f"{name}: {message}", hint=hint or example) from None
