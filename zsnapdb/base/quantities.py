"""Conversion of sizes, durations and levels from the configuration and the command line."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationInfo

from zsnapdb.base.errors import UsageError

_SIZES = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST = 36500 * 86400.0
"""Maximum time in seconds between a date and now."""


WRITTEN = "written"
"""Key in the validation context of values that a person wrote. In such values, a number without a unit is refused."""


def _bare_number(value: object) -> str | None:
    """Return the number of a quantity that has no unit; None if the quantity has a unit or is 0.

    Raises:
        ValueError: the number is negative, infinite or NaN.
    """
    if isinstance(value, float | int) and not 0 <= value < math.inf:
        raise ValueError("is no size or duration: write a number from 0 and a unit")
    number = "10" if isinstance(value, bool) else str(value).strip()
    if isinstance(value, float) and "e" in number:
        number = f"{Decimal(number):f}"
    return number if re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) and float(number) else None


def _require_unit(quantity: str, *choices: str) -> None:
    """Raise a ValueError that lists the valid spellings with a unit."""
    written = (f'"{choice}"' for choice in dict.fromkeys(choices))
    raise ValueError(f"{quantity} needs a unit: write {' or '.join(written)}")


def _size_choices(number: str) -> tuple[str, ...]:
    """Return possible spellings of a size without a unit. A number of 1024 or more is interpreted as bytes."""
    if "." in number or int(number) < 1 << 10:
        return f"{number}GiB", f"{number}MiB"
    units = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
    whole = [f"{int(number) // length}{unit}" for unit, length in units if int(number) % length == 0]
    return *whole[:1], f"{number}B"


def _duration_choices(number: str) -> tuple[str, ...]:
    """Return possible spellings of a duration without a unit, seconds first.

    A number of 3600 or more is interpreted as seconds.
    """
    seconds = float(number)
    if seconds < 3600:
        return f"{number}s", f"{number}d"
    return (f"{number}s", format_setting(seconds)) if seconds % 60 == 0 else (f"{number}s",)


def binary_size(text: str) -> str | None:
    """Return a size with the similar binary unit, such as "32MiB" for "32MB"; None for any other text."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]{1,3})?)\s*([KMGT])B?", text.strip(), re.IGNORECASE)
    return f"{match[1]}{match[2].upper()}iB" if match is not None else None


def _size(value: object, info: ValidationInfo | None) -> object:
    if (info is None or info.context == WRITTEN) and (number := _bare_number(value)):
        _require_unit("a size", *_size_choices(number))
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,3})?)\s*([A-Za-z]*)", value.strip())
        unit = _SIZES.get(match.group(2).upper()) if match is not None else None
        if match is None or unit is None or ("." in match.group(1) and unit == 1):
            raise ValueError(
                f'a size is a number with B, KiB, MiB, GiB or TiB, such as "{binary_size(value) or "32MiB"}"'
            )
        return int(Decimal(match.group(1)) * unit)
    return value


def _duration(value: object, info: ValidationInfo | None) -> object:
    if (info is None or info.context == WRITTEN) and (number := _bare_number(value)):
        _require_unit("a duration", *_duration_choices(number))
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d|w)", value.strip())
        if match is None:
            raise ValueError('a duration is a number with ms, s, m, h, d or w, such as "5s"')
        seconds = float(match.group(1)) * _TIMES[match.group(2)]
        if seconds > _LONGEST:
            raise ValueError("a duration is at most 36500d")
        return seconds
    return value


def _level(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 19):
        return value
    raise ValueError('a level is a number from 0 (off) to 19, or "auto"')


def size(count: int) -> str:
    """Return a byte count as B, KiB, MiB, GiB or TiB with one decimal."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def is_full(used: int | None, quota: int) -> bool:
    """Return whether less than 5 % of a quota is left (0: no quota). A server without free space may stop."""
    return used is not None and quota > 0 and 20 * (quota - used) < quota


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun: `1 backup`, `2 backups`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def parse_duration(text: str) -> float:
    """Return a duration from the command line, in seconds. Raises UsageError if the text is not a duration."""
    try:
        return float(str(_duration(text, None)))
    except ValueError as error:
        raise UsageError(f"{text!r} is not a duration: {error}", hint='write a duration such as "30m"') from error


def parse_size(text: str) -> int:
    """Return a size from the command line, in bytes. Raises UsageError if the text is not a size."""
    try:
        return int(str(_size(text, None)))
    except ValueError as error:
        example = binary_size(text) or "2GiB"
        raise UsageError(f"{text!r} is not a size: {error}", hint=f'write a size such as "{example}"') from error


def format_duration(seconds: float) -> str:
    """Return a duration in its one or two largest units, for example `2 h`, `1 d 4 h` or `8.4 s`."""
    units = (("d", 86400), ("h", 3600), ("min", 60))
    for number, (unit, length) in enumerate(units):
        if seconds >= length:
            rest = int(seconds % length)
            smaller, divisor = units[number + 1] if number + 1 < len(units) else ("s", 1)
            return f"{int(seconds // length)} {unit}" + (f" {rest // divisor} {smaller}" if rest // divisor else "")
    return f"{round(seconds, 1):g} s"


def format_setting(seconds: float) -> str:
    """Return a duration as in the configuration, in the largest unit that leaves no remainder, such as `7d`."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


QUANTITIES = (_size, _duration)
"""The conversions of settings that need a unit."""

Size = Annotated[int, BeforeValidator(_size)]
"""Bytes."""
Seconds = Annotated[float, BeforeValidator(_duration)]
Level = Annotated[int | Literal["auto"], BeforeValidator(_level)]
"""A zstd compression level."""
