"""`zsnapdb undo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show


def undo(
    gtid: Annotated[
        str,
        typer.Option("--gtid", metavar="GTID", help="The transaction, as `zsnapdb binlog find` prints its GTID."),
    ],
    instance: InstanceName = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="FILE", help="Write the SQL that undoes it into this new file.", show_default=False
        ),
    ] = None,
    tried: Annotated[
        bool,
        typer.Option(
            "--try", help="Run it on a clone of the server first, which is destroyed; write no file if it fails."
        ),
    ] = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the rows that a transaction changed, and write the SQL that undoes it.

    The server is not changed. The SQL undoes all rows or none: a row that was changed since prevents it.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.binlog import undo as job
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.report import undo as report

    settings = load(config)
    chosen = Instance.of(settings, instance, Terminal())
    job.refuse_existing(into)
    undone = job.undo(chosen, gtid)
    if tried:
        from zsnapdb.jobs.clone.undo_trial import try_undo

        try_undo(settings, chosen, undone.statements, undone.questions)
        undone = replace(undone, is_tried=True)
    show(report.UndoView(job.write(undone, into) if into is not None else undone), json)
