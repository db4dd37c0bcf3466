"""The table of sizes in the page about sizing. It stands between two marks; the rest of the page is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from zsnapdb.base.quantities import format_duration, parse_size, size
from zsnapdb.jobs.repository.sizing import size_workload
from zsnapdb.planning.repository.sizing import (
    BACKUP,
    BACKUP_MEMORY,
    BINLOG_STORED,
    DATE,
    NOTE,
    PRICES,
    RESTORE,
    STORED,
    Workload,
)

_BEGIN, _END = "<!-- sizes: `make references` writes this table -->\n", "<!-- end of sizes -->\n"
SIZES = ("10 GiB", "100 GiB", "1 TiB", "10 TiB")
"""The sizes of the table, as `zsnapdb sizing --size` accepts them."""
CHANGE = 0.02
"""The share of the data that changes in a day."""


def page(file: Path) -> str:
    """Return the text of the page with the table of today. ValueError if the page has no place for it."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"{file} has no place for the table of sizes")
    return "".join((before, begin, "\n", *(f"{line}\n" for line in _lines()), "\n", end, after))


def _lines() -> Iterator[str]:
    """Yield the lines of the tables: one row for each size, the rates, the price lists."""
    yield "| data | full | increment | restore | memory | stored | objects | PUT per month | USD per month |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in SIZES:
        data = parse_size(name)
        one = size_workload(Workload(data, data * CHANGE, data * CHANGE), (PRICES["s3"],))
        cells = (
            name,
            format_duration(one.full_seconds),
            format_duration(one.increment_seconds),
            format_duration(one.restore_seconds),
            f"{size(one.backup_memory)}, {size(one.restore_memory)}",
            size(one.stored),
            f"{one.objects:,}",
            f"{one.requests.put:,.0f}",
            f"{one.costs[0].month:,.2f}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| measurement | value | conditions |"
    yield "|---|---|---|"
    for name, value, rate in (
        ("backup", f"{size(round(BACKUP.value))}/s", BACKUP),
        ("restore", f"{size(round(RESTORE.value))}/s", RESTORE),
        ("stored bytes", f"{STORED.value:g} of a stream", STORED),
        ("stored binlog", f"{BINLOG_STORED.value:g} of a binlog", BINLOG_STORED),
        ("memory", size(round(BACKUP_MEMORY.value)), BACKUP_MEMORY),
    ):
        yield f"| {name} | {value} | {rate.source} |"
    yield ""
    yield f"Prices as of {DATE}. {NOTE}"
    yield ""
    yield "| `--prices` | product | USD per GiB-month | per 1,000 PUT | per 1,000 GET | per GiB read | source |"
    yield "|---|---|---|---|---|---|---|"
    for name, price in PRICES.items():
        numbers = (price.gib_month, price.put_thousand, price.get_thousand, price.traffic_gib)
        yield f"| `{name}` | {price.name} | {' | '.join(f'{one:g}' for one in numbers)} | <{price.source}> |"
