"""`zsnapdb sizing`: an estimate for a server of a given size. Needs no configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson
from zsnapdb.cli.output import show

SizingChange = Annotated[
    str | None,
    typer.Option("--change", metavar="RATE", help="Changed bytes, for example 20GiB/day.", show_default="2% a day"),
]
SizingBinlog = Annotated[
    str | None,
    typer.Option(
        "--binlog", metavar="RATE", help="Bytes of binlog, 0B/day if none is archived.", show_default="as --change"
    ),
]
SizingKeep = Annotated[
    str | None, typer.Option("--keep", metavar="RULES", help="The retention policy.", show_default="daily=14,weekly=8")
]
SizingEvery = Annotated[str, typer.Option("--every", metavar="DURATION", help="Time between two backups.")]
SizingFull = Annotated[str, typer.Option("--full-every", metavar="DURATION", help="Time between two full backups.")]
SizingLine = Annotated[
    str, typer.Option("--line", metavar="BANDWIDTH", help="Bandwidth to the store; 119MiB/s is 1 Gbit/s.")
]
SizingPrices = Annotated[
    str, typer.Option("--prices", metavar="LIST|FILE", help="Price list: s3, azure, google, all, or a TOML file.")
]


def sizing(
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Size of the data, for example 1TiB.")],
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
