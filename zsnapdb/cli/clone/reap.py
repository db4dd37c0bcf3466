"""`zsnapdb reap`."""

from __future__ import annotations

import functools

from zsnapdb.cli.evidencing import evidence_of_removed
from zsnapdb.cli.options import AsJson, ConfigFile, PlanOnly, WithForeignSnapshots
from zsnapdb.cli.output import show


def reap(
    with_foreign_snapshots: WithForeignSnapshots = False,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Destroy expired clones and virtual machines and the leftovers of runs that died.

    Servers that such runs left are ended.
    """
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.host import THIS_HOST
    from zsnapdb.jobs.clone import reaper
    from zsnapdb.jobs.copies.sweeping import GoesToo
    from zsnapdb.jobs.doctor import orphans
    from zsnapdb.jobs.vm import reaper as vm_reaper
    from zsnapdb.report.clone import destroy as report

    settings = load(config)
    also = [GoesToo.FOREIGN_SNAPSHOTS] if with_foreign_snapshots else []
    note = functools.partial(evidence_of_removed, settings)
    clones = reaper.plan(settings, THIS_HOST) if plan else reaper.reap(settings, THIS_HOST, also, note)
    outcomes = [*clones, *(orphans.plan(settings) if plan else orphans.reap(settings))]
    outcomes += vm_reaper.sweep(settings, THIS_HOST, act=not plan, also=also)
    show(report.ReapPlanView(outcomes) if plan else report.ReapView(outcomes), json)
    for item in outcomes:
        if item.error is not None:
            raise item.error
