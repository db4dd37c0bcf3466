"""`zsnapdb reap`."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from zsnapdb.cli.evidencing import evidence_of_removed
from zsnapdb.cli.opened import on_host
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, WithForeignSnapshots
from zsnapdb.cli.output import show


def reap(
    with_foreign_snapshots: WithForeignSnapshots = False,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="Confirm that the clock of this host is right, for all removals.")
    ] = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Destroy expired clones and virtual machines and the leftovers of runs that died.

    Servers that such runs left are ended.
    """
    from zsnapdb.jobs.base import removal_time
    from zsnapdb.jobs.clone import reaper
    from zsnapdb.jobs.copies.sweeping import GoesToo
    from zsnapdb.jobs.doctor import orphans
    from zsnapdb.jobs.vm import reaper as vm_reaper
    from zsnapdb.report.clone import destroy as report

    settings, host = on_host(config)
    if trust_clock and not plan:
        removal_time.confirm(host)
    also = [GoesToo.FOREIGN_SNAPSHOTS] if with_foreign_snapshots else []
    note = functools.partial(evidence_of_removed, settings)
    clones = reaper.plan(settings, host) if plan else reaper.reap(settings, host, also, note)
    outcomes = [*clones, *(orphans.plan(settings) if plan else orphans.reap(settings))]
    outcomes += vm_reaper.sweep(settings, host, act=not plan, also=also)
    show(report.ReapPlanView(outcomes) if plan else report.ReapView(outcomes), json)
    for item in outcomes:
        if item.error is not None:
            raise item.error
