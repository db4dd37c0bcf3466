"""`zsnapdb clone pool`."""

from __future__ import annotations

from zsnapdb.cli.evidencing import evidence_of_pool
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, Once, PlanOnly
from zsnapdb.cli.output import show


def pool(
    instance: InstanceName = None,
    once: Once = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Fill the pool of an instance: clones that wait for `zsnapdb clone create`.

    Those with data that is too old, without a server, or masked by other rules are destroyed and made anew.
    """
    from zsnapdb.jobs.clone import pool_filling as job
    from zsnapdb.report.clone import pool as report

    settings, chosen = of_instance(config, instance)
    if plan:
        show(report.PoolPlanView(job.plan_fill(settings, chosen)), json)
        return

    def make() -> CommandAnswer:
        filled = job.fill(settings, chosen)
        evidence_of_pool(chosen, filled.changed)
        return CommandAnswer(report.FilledPoolView(filled))

    show_once(chosen.host, once, Repeatable("clone pool", chosen.name, tell=chosen.events.tell), make, json)
