"""`zsnapdb verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.once import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName, Once, PlanOnly, RepositoryName
from zsnapdb.cli.output import show, show_errors


def verify(
    instance: InstanceName = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte: check hashes, decryption, and the records of the streams.")
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Only backups without a successful verification in this time, for example 30d.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Verify at most N backups, the most urgent first.", show_default=False
        ),
    ] = None,
    repository: RepositoryName = None,
    once: Once = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Check that the backups in the repository are undamaged.

    Exit codes: 0 good, 7 damaged, 6 the repository has no backup or cannot be reached.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.repository import verify as job
    from zsnapdb.report.repository import verify as report

    _, chosen = of_instance(config, instance, repository)
    seconds = parse_duration(older_than) if older_than is not None else None
    depth = job.Depth.READ if deep else job.Depth.LISTED
    if plan:
        planned = job.plan(chosen, depth, older_than=seconds, limit=limit)
        show(report.VerifyPlanView(planned), json)
        return

    def make() -> CommandAnswer:
        result = job.verify(chosen, depth, older_than=seconds, limit=limit)
        error = result.alarm()
        show_errors([error] if error is not None else [])
        return CommandAnswer(report.VerifyView(result), error.exit_code if error is not None else 0)

    about = f"{chosen.name} in {chosen.settings.repository}"
    show_once(chosen.host, once, Repeatable("verify", about, tell=chosen.events.tell), make, json)
