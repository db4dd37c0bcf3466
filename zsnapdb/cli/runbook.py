"""`zsnapdb runbook`."""

from __future__ import annotations

from typing import Annotated

import typer

from zsnapdb.cli.options import (
    POINT,
    AcceptOlder,
    AsJson,
    ConfigFile,
    HandoverName,
    History,
    InstanceName,
    ReplicationAddress,
    ReplicationPasswordFile,
    ReplicationUser,
    RepositoryName,
    RestoredPort,
    RestoredServerId,
    RestoreFrom,
    RestoreName,
    RestoreTarget,
)
from zsnapdb.cli.output import show

RunbookPoint = Annotated[str, typer.Option("--to", metavar="POINT", help=f"The point to restore: {POINT}.")]
OutputFormat = Annotated[str, typer.Option("--format", metavar="FORM", help="The output format: md or html.")]


def runbook(
    instance: InstanceName = None,
    to: RunbookPoint = "latest",
    accepts_older: AcceptOlder = False,
    history: History = None,
    origin: RestoreFrom = "repository",
    target: RestoreTarget = None,
    name: RestoreName = None,
    handover: HandoverName = "run",
    port: RestoredPort = None,
    server_id: RestoredServerId = None,
    source: ReplicationAddress = None,
    source_user: ReplicationUser = "replica",
    source_password_file: ReplicationPasswordFile = None,
    repository: RepositoryName = None,
    form: OutputFormat = "md",
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Print a restore as numbered steps for a person.

    The steps are those that `zsnapdb restore` would execute now.
    Each step has its commands, checks, expected duration, and what to do if it fails.
    """
    from zsnapdb.cli.restore import handover_of
    from zsnapdb.config.settings import load
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.restore import runbook as job
    from zsnapdb.jobs.restore.plan import RestoreRequest, origin_of
    from zsnapdb.report.restore import runbook as report

    if form not in ("md", "html"):
        raise typer.BadParameter(f"invalid --format {form!r}; choose md or html")
    settings = load(config)
    request = RestoreRequest(
        to,
        target,
        name,
        handover_of(handover, port, server_id, source, source_user, source_password_file),
        accepts_older=accepts_older,
        history=history,
        origin=origin_of(origin),
    )
    book = job.make(settings, Instance.at(settings, instance, repository), request, config)
    show(report.RunbookView(book, as_html=form == "html"), json)
