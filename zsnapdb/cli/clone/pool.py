"""`zsnapdb clone pool`."""

from __future__ import annotations

from zsnapdb.cli.evidencing import evidence_of_pool
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, PlanOnly
from zsnapdb.cli.output import show


def pool(
    instance: InstanceName = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Fill the pool of an instance: clones that wait for `zsnapdb clone create`.

    Those with data that is too old, without a server, or masked by other rules are destroyed and made anew.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.clone import pool_filling as job
    from zsnapdb.report.clone import pool as report

    settings, terminal = load(config), Terminal()
    chosen = Instance.of(settings, instance, terminal)
    if plan:
        show(report.PoolPlanView(job.plan_fill(settings, chosen)), json)
        return
    filled = job.fill(settings, chosen)
    evidence_of_pool(chosen, filled.changed)
    terminal.end()
    show(report.FilledPoolView(filled), json)
