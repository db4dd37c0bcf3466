"""Values of settings as users write them in the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from datetime import date
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from zsnapdb.base import quantities

UNITS: dict[Any, str] = {
    quantities._size: "size",
    quantities._duration: "duration",
    quantities._level: 'a number, or "auto"',
}
"""The kind of a quantity by the function that converts it."""
_TIMES = (("w", 7 * 86400), ("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def metadata_of(field: FieldInfo) -> list[Any]:
    """Return the constraints of the value, also of an optional value."""
    every = list(field.metadata)
    for part in get_args(field.annotation):
        if get_origin(part) is Annotated:
            for item in get_args(part)[1:]:
                every += item.metadata if isinstance(item, FieldInfo) else [item]
    return every


def unit_of(field: FieldInfo) -> str:
    """Return the kind of the quantity (see UNITS); "" if the value is none."""
    units = [UNITS.get(item.func) for item in metadata_of(field) if isinstance(item, BeforeValidator)]
    return next((unit for unit in units if unit), "")


def quantity(value: Any, unit: str) -> str:
    """Return a default or a limit as users write it in the configuration, without quotes."""
    if unit in ("size", "duration") and isinstance(value, int | float) and value:
        for name, length in _SIZES if unit == "size" else _TIMES:
            if value % length == 0:
                return f"{int(value // length)}{name}"
        return f"{value:g}s" if unit == "duration" else f"{value}B"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def toml(value: Any, unit: str = "") -> str:
    """Return a value as TOML has it."""
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
