"""Estimates the size of a server's backups from the size of its data, with the default chunk size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from zsnapdb.base.errors import ConfigError, UsageError
from zsnapdb.base.files import read_text
from zsnapdb.base.quantities import parse_size
from zsnapdb.config.errors import read_toml
from zsnapdb.config.repository import DEFAULT_KEEP, KeepRules, StreamSettings
from zsnapdb.planning.backup.send_form import decide_first_chunk
from zsnapdb.planning.repository.sizing import PRICES, SizingEstimate, StorePrice, Workload, estimate
from zsnapdb.stream.buffer_pool import FIRST_CHUNK, chunk_size

_PERIODS = {"h": 24.0, "hour": 24.0, "day": 1.0, "d": 1.0, "week": 1 / 7, "w": 1 / 7}
"""The number of periods in a day."""


def size_workload(load: Workload, prices: tuple[StorePrice, ...]) -> SizingEstimate:
    """Return the estimate for the workload. Raises UsageError if the workload cannot be simulated."""
    if load.size <= 0 or load.change < 0 or load.line <= 0:
        raise UsageError("a size and a bandwidth must be more than 0", hint="write --size 100GiB --line 119MiB/s")
    if load.every < 3600 or load.full_every < load.every:
        raise UsageError(
            "--every is at least 1h and at most --full-every", hint="for example --every 1d --full-every 30d"
        )
    most = StreamSettings().chunk_size

    def sizes_of(stream: float) -> Callable[[int], int]:
        first = decide_first_chunk(FIRST_CHUNK, most, [int(stream)])
        return lambda index: chunk_size(index, first, most)

    return estimate(load, sizes_of, prices)


def parse_daily(text: str) -> float:
    """Return a rate such as 20GiB/day in bytes per day. Raises UsageError if the text is not a rate."""
    amount, slash, period = text.partition("/")
    if period not in _PERIODS:
        problem = f"the period {period!r} is not known" if slash else "the period is missing"
        raise UsageError(f"{text!r} is not a rate: {problem}", hint="write a rate such as 20GiB/day or 1GiB/h")
    return parse_size(amount) * _PERIODS[period]


def parse_line(text: str) -> float:
    """Return a bandwidth such as 119MiB/s in bytes per second. Raises UsageError if the text is not a bandwidth."""
    amount, slash, period = text.partition("/")
    if slash and period != "s":
        raise UsageError(f"{text!r} is not a bandwidth", hint="write a bandwidth such as 119MiB/s (1 Gbit/s)")
    return float(parse_size(amount))


def parse_keep(text: str | None) -> KeepRules:
    """Return the retention rules in a text such as daily=14,weekly=8.

    Raises UsageError if the text contains no rules.
    """
    if text is None:
        return DEFAULT_KEEP
    hint = "write rules such as daily=14,weekly=8, or within=30d"
    rules: dict[str, str | int] = {}
    for rule in text.split(","):
        name, _, value = rule.strip().partition("=")
        rules[name] = int(value) if re.fullmatch(r"[0-9]{1,6}", value) else value
    try:
        return KeepRules.model_validate(rules)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"])) or text
        raise UsageError(f"--keep {where}: {problem['msg'].removeprefix('Value error, ')}", hint=hint) from None


def parse_prices(text: str) -> tuple[StorePrice, ...]:
    """Return the price list with the given name, all lists for `all`, or the list in a TOML file.

    Raises ConfigError if the file cannot be used.
    """
    if text == "all":
        return tuple(PRICES.values())
    if text in PRICES:
        return (PRICES[text],)
    file = Path(text)
    hint = f"choose from all, {', '.join(PRICES)}, or write a TOML file with the keys {', '.join(_keys())}"
    if "/" not in text and not file.suffix:
        raise UsageError(f"{text!r} is not a price list", hint=hint)
    table = read_toml(read_text(file, "the price list", hint), str(file))
    numbers = {key: value for key, value in table.items() if key in _keys() and isinstance(value, int | float)}
    texts = {key: value for key, value in table.items() if key in _keys() and isinstance(value, str)}
    if set(numbers) | set(texts) != set(_keys()) or not set(texts) >= {"name", "date", "source", "currency"}:
        raise ConfigError(f"{file} does not have the keys of a price list", hint=hint)
    values: dict[str, Any] = {**texts, **numbers}
    return (StorePrice(**values),)


def _keys() -> tuple[str, ...]:
    return tuple(part.name for part in fields(StorePrice))
