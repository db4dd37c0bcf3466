"""`zsnapdb clone extend`, `zsnapdb clone protect`, `zsnapdb clone rename` and `zsnapdb clone beat`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.clone.options import CloneName
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly
from zsnapdb.cli.output import show

_GREATEST_PID = 1 << 22
"""The most that pid_max can be (proc(5))."""


def extend(
    name: CloneName,
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl",
            metavar="DURATION",
            help="The new length of the lease from now, for example 2h.",
            show_default="clones.ttl",
        ),
    ] = None,
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota",
            metavar="SIZE",
            help="How much of its own it may have, for example 40GiB. The lease stays, unless --ttl is given.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Extend the lease of a clone, or what it may write. A lease is never shortened."""
    from zsnapdb.base.quantities import parse_duration, parse_size
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle, plans, room
    from zsnapdb.report.clone import change as report

    if quota is not None:
        wanted = parse_size(quota)
        if plan:
            show(report.IntentionView(plans.quota(load(config), THIS_HOST, name, wanted), "extend"), json)
            return
        changed = room.extend(load(config), THIS_HOST, name, wanted)
        if ttl is None:
            show(report.ChangedView(changed, "extended"), json)
            return
    if plan:
        show(
            report.IntentionView(
                plans.extend(load(config), THIS_HOST, name, parse_duration(ttl) if ttl is not None else None), "extend"
            ),
            json,
        )
        return
    show(
        report.ChangedView(
            lifecycle.extend(load(config), THIS_HOST, name, parse_duration(ttl) if ttl is not None else None),
            "extended",
        ),
        json,
    )


def protect(
    name: CloneName,
    time: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Length of the protection from now, for example 2d; 0s ends the protection.",
            show_default=False,
        ),
    ],
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Protect a clone from `zsnapdb reap` for some time."""
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle, plans
    from zsnapdb.report.clone import change as report

    if plan:
        show(report.IntentionView(plans.protect(load(config), THIS_HOST, name, parse_duration(time)), "protect"), json)
        return
    info = lifecycle.protect(load(config), THIS_HOST, name, parse_duration(time))
    show(report.ChangedView(info, "protected"), json)


def rename(
    name: CloneName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="What it is called from now on.", show_default=False)],
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Give a clone another name. Its id, address, login and lease stay."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    show(report.ChangedView(lifecycle.rename(load(config), THIS_HOST, name, new), "renamed"), json)


def beat(
    name: CloneName,
    process: Annotated[
        int | None,
        typer.Option(
            "--while",
            metavar="PID",
            min=1,
            max=_GREATEST_PID,
            help="Beat until this process of this host ends.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Say that the holder of a clone is there. A clone made with --heartbeat goes when nobody says so any more."""
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import lifecycle
    from zsnapdb.report.clone import change as report

    settings = load(config)
    info = (
        lifecycle.beat(settings, THIS_HOST, name)
        if process is None
        else lifecycle.beat_while(settings, THIS_HOST, name, process)
    )
    show(report.ChangedView(info, "in use"), json)
