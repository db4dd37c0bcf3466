"""`zsnapdb sizing`: an estimate for a server of a given size. Needs no configuration."""

from __future__ import annotations

from typing import Annotated

from zsnapdb.cli.options import AsJson, option
from zsnapdb.cli.output import show

SizingChange = Annotated[
    str | None, option("--change", "RATE", "Changed bytes, for example 20GiB/day.", show_default="2% a day")
]
SizingBinlog = Annotated[
    str | None, option("--binlog", "RATE", "Bytes of binlog, 0B/day if none is archived.", show_default="as --change")
]
SizingKeep = Annotated[str | None, option("--keep", "RULES", "The retention policy.", show_default="daily=14,weekly=8")]
SizingEvery = Annotated[str, option("--every", "DURATION", "Time between two backups.")]
SizingFull = Annotated[str, option("--full-every", "DURATION", "Time between two full backups.")]
SizingLine = Annotated[str, option("--line", "BANDWIDTH", "Bandwidth to the store; 119MiB/s is 1 Gbit/s.")]
SizingPrices = Annotated[str, option("--prices", "LIST|FILE", "Price list: s3, azure, google, all, or a TOML file.")]


def sizing(
    size: Annotated[str, option("--size", "SIZE", "Size of the data, for example 1TiB.")],
    change: SizingChange = None,
    binlog: SizingBinlog = None,
    keep: SizingKeep = None,
    every: SizingEvery = "1d",
    full_every: SizingFull = "30d",
    line: SizingLine = "119MiB/s",
    prices: SizingPrices = "s3",
    json: AsJson = False,
) -> None:
    """Estimate hours, memory, objects, requests and money for a server of a given size. Needs no configuration.

    The rates were measured; the answer names how. The retention policy is simulated.
    """
    from zsnapdb.base.quantities import parse_duration, parse_size
    from zsnapdb.jobs.shell import sizing as job
    from zsnapdb.planning.sizing.estimate import Workload
    from zsnapdb.report.sizing import SizingView

    data = parse_size(size)
    changed = job.parse_daily(change) if change is not None else data * 0.02
    load = Workload(
        size=data,
        change=changed,
        binlog=job.parse_daily(binlog) if binlog is not None else changed,
        keep=job.parse_keep(keep),
        every=parse_duration(every),
        full_every=parse_duration(full_every),
        line=job.parse_line(line),
    )
    show(SizingView(job.size_workload(load, job.parse_prices(prices))), json)
