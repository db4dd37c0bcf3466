"""Reference of the configuration: every section and key of the models, explained by the example configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from zsnapdb.config.effective import UNITS, metadata_of, quantity, unit_of
from zsnapdb.config.services import ScheduleSettings
from zsnapdb.config.settings import Settings

_HEAD = """# Configuration

`/etc/zsnapdb/zsnapdb.toml`, in TOML. This page is made from the program and from the example (`make references`);
`zsnapdb example zsnapdb.toml` prints that example, and `zsnapdb config check` checks a file. Unknown keys are refused,
and all mistakes of a file are told at once.

A size is a number with B, KiB, MiB, GiB or TiB. A duration is a number with ms, s, m, h, d or w. In the names of
sections, NAME is a name of yours.
"""
_EXAMPLE = Path(__file__).parents[3] / "configs" / "zsnapdb.example.toml"
_LIMITS = (("gt", "more than"), ("ge", "at least"), ("lt", "less than"), ("le", "at most"))


@dataclass(frozen=True)
class SectionText:
    """A section of the configuration: its header and its model."""

    header: str
    model: type[BaseModel]

    @property
    def name(self) -> str:
        """The header without brackets."""
        return self.header.strip("[]")


def page() -> str:
    """Return the page as Markdown."""
    explained = explanations(_EXAMPLE.read_text(encoding="utf-8"))
    lines = [_HEAD]
    for section in sections():
        lines += _section(section, explained)
    return "\n".join(lines).rstrip() + "\n"


def sections() -> list[SectionText]:
    """Return every section, each before its subsections."""
    return list(_walk(Settings, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SectionText]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        section = _model_in(field.annotation)
        if section is None:
            continue
        inner, container = section
        header = f"{prefix}{key}" + (".NAME" if container is dict else "")
        yield SectionText(f"[[{header}]]" if container is tuple else f"[{header}]", inner)
        yield from _walk(inner, f"{header}.")


def _model_in(annotation: Any) -> tuple[type[BaseModel], type | None] | None:
    """Return the model of a section, and the container if it is in a dict or tuple. None if it is no section."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, None
    for part in get_args(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            origin = get_origin(annotation)
            return part, origin if origin in (dict, tuple) else None
    return None


def _section(section: SectionText, explained: Mapping[tuple[str, str], str]) -> Iterator[str]:
    yield f"## {section.header}"
    yield ""
    yield " ".join(inspect.cleandoc(section.model.__doc__ or "").split())
    yield ""
    keys = [(f.alias or n, f) for n, f in section.model.model_fields.items() if _model_in(f.annotation) is None]
    if not keys:
        return
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in keys:
        meaning = meaning_of(section, key, explained)
        cells = (f"`{key}`", _value(field), _default(field), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def meaning_of(section: SectionText, key: str, explained: Mapping[tuple[str, str], str]) -> str:
    """Return the explanation of a key. Schedules of all jobs share theirs, and so do the retention rules."""
    name = "copy_to" if issubclass(section.model, ScheduleSettings) else _last(section.name)
    shared = {"local": "keep"}.get(name, name)
    return explained.get((name, key), "") or explained.get((shared, key), "")


def _value(field: FieldInfo) -> str:
    limits = [
        f"{word} {_limit(field, number)}" for name, word in _LIMITS if (number := _bound(field, name)) is not None
    ]
    return ", ".join([_kind(field.annotation, field.metadata), *limits])


def _bound(field: FieldInfo, name: str) -> Any:
    bounds = [getattr(item, name, None) for item in metadata_of(field)]
    return next((bound for bound in bounds if bound is not None), None)


def _limit(field: FieldInfo, number: Any) -> str:
    return quantity(number, unit_of(field))


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """Return the type of a value in words."""
    for item in metadata:
        if isinstance(item, BeforeValidator) and item.func in UNITS:
            return UNITS[item.func]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0], list(arguments[1:]))
    if origin is Literal:
        return ", ".join(f'"{choice}"' for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(part, []) for part in arguments if part is not NoneType))
    if origin is tuple:
        return f"list of {_kind(arguments[0], [])}"
    if origin is dict:
        return f"table of {_kind(arguments[1], [])}"
    return {
        "str": "text",
        "int": "number",
        "float": "number",
        "bool": "true, false",
        "Path": "path",
        "date": "day",
    }.get(getattr(annotation, "__name__", ""), "value")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return quantity(value, unit_of(field))


_HEADER = re.compile(r"#? ?\[{1,2}([a-z0-9_.:\"]+)\]{1,2}$")
_NAMES = {"NAME", "main", "web", "offsite", "disk", "github", "people", '"ci:shop"', "watch", "chat", "dba", "pager"}
_KEY = re.compile(r"(?:# )?([a-z_]+) = (.*)")


def explanations(text: str) -> dict[tuple[str, str], str]:
    """Return the example's comments on each key, by the last word of its section and the key.

    The comment lines above a key explain it. A line that is a key itself, commented out or not, ends the explanation.
    """
    known = {_last(section.name) for section in sections()}
    explained: dict[tuple[str, str], str] = {}
    section, comment = "", list[str]()
    for line in text.split("\n"):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            if _last(header.group(1)) not in known:
                raise ValueError(f"{line}: add the name to _NAMES, or declare the section")
            section, comment = _last(header.group(1)), []
        elif key is not None:
            explained.setdefault((section, key.group(1)), " ".join(comment))
            comment = []
        elif line.startswith("#"):
            comment.append(line.lstrip("# ").strip())
        else:
            comment = []
    return explained


def _last(section: str) -> str:
    """Return the last word of a section's name, without names chosen by users: `instance.NAME` becomes instance."""
    words = [word for word in section.split(".") if word not in _NAMES]
    return words[-1]
