"""Explains the errors of a configuration: the key, what is wrong, and the most similar known key."""

from __future__ import annotations

import difflib
from types import UnionType
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError


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


def explain(error: ValidationError, settings: type[BaseModel]) -> tuple[str, str]:
    """Return the message and the hint (may be "") for an error in a text that should have the model `settings`."""
    lines, hints = [], []
    for item in error.errors():
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
    return "; ".join(lines), " ".join(hints)
