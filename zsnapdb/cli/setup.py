"""`zsnapdb setup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, PlanOnly
from zsnapdb.cli.output import show

_REFUSED = 4


def setup(
    repository: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="Where backups go: s3://bucket/prefix or file:///folder.", show_default=False
        ),
    ],
    instance: Annotated[str, typer.Option("--instance", metavar="NAME", help="The name of the instance.")] = "main",
    socket: Annotated[
        str | None,
        typer.Option(
            "--socket", metavar="PATH", help="The socket of the server.", show_default="that of the only server"
        ),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool", metavar="NAME", help="The pool for files that are not on ZFS.", show_default="the only one"
        ),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="URL", help="The endpoint of the S3 store.", show_default=False)
    ] = None,
    credentials_file: Annotated[
        str | None,
        typer.Option(
            "--credentials-file", metavar="FILE", help="The file with the credentials of the store.", show_default=False
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Do not encrypt the backups.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="The configuration to write.", show_default="/etc/zsnapdb/zsnapdb.toml"
        ),
    ] = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Find the server of this host, write the configuration for it, and print the commands that are left.

    A server whose files lie on ZFS is adopted: nothing of it is touched. For another one the commands create datasets
    and move its files there. With --plan: 4 if the setup would be refused.
    """
    from zsnapdb.jobs import setup as job
    from zsnapdb.report import setup as report

    answers = job.SetupAnswers(repository, instance, socket, pool, credentials_file, endpoint, encrypt=not plain)
    if not plan:
        show(report.SetupView(job.setup(answers, config)), json)
        return
    made = job.plan(answers, config)
    show(report.SetupPlanView(made), json)
    if made.refusals:
        raise typer.Exit(_REFUSED)
