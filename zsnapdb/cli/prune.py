"""`zsnapdb prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import DamagedError
from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, Once, PlanOnly, RepositoryName, WaitTime
from zsnapdb.cli.output import show, show_errors, show_missing

if TYPE_CHECKING:
    from zsnapdb.jobs.repository.prune import PrunePlan


def prune(
    instance: InstanceName = None,
    repository: RepositoryName = None,
    unrestorable: Annotated[
        bool, typer.Option("--unrestorable", help="Also remove backups that cannot be restored any more.")
    ] = False,
    trust_clock: Annotated[
        bool, typer.Option("--trust-clock", help="Prune although the clock of this host seems to be wrong.")
    ] = False,
    once: Once = None,
    wait: WaitTime = "0s",
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Remove expired backups and the leftovers of interrupted runs.

    A backup is expired if the retention policy does not keep it.
    """
    from zsnapdb.jobs.repository import prune as job
    from zsnapdb.jobs.repository.prune_facts import NOTHING_LOCAL
    from zsnapdb.report.repository import prune as report

    settings, chosen = of_instance(config, instance, repository, wait=wait)
    is_own = chosen.settings.repository == settings.instance[chosen.name].repository
    local = None if is_own else NOTHING_LOCAL
    policy = job.Unrestorable.REMOVE if unrestorable else job.Unrestorable.KEEP
    if plan:
        planned = job.plan(chosen, local=local, unrestorable=policy, trusts_clock=trust_clock)
        show(report.PrunePlanView(planned), json)
        code = _show_problems(planned)
        if code:
            raise typer.Exit(code)
        return

    def make() -> CommandAnswer:
        result = job.prune(chosen, local=local, unrestorable=policy, trusts_clock=trust_clock)
        return CommandAnswer(report.PruneView(result), _show_problems(result.plan))

    about = f"{chosen.name} in {chosen.settings.repository}"
    show_once(chosen.host, once, Repeatable("prune", about, patience=chosen.wait, tell=chosen.events.tell), make, json)


def _show_problems(planned: PrunePlan) -> int:
    """Print to stderr what cannot be read or is missing. Return the exit code that follows."""
    errors = list(planned.backups.unreadable.values())
    show_errors(errors)
    is_lacking = show_missing(planned.missing)
    return errors[0].exit_code if errors else DamagedError.exit_code if is_lacking else 0
