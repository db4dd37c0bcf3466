"""`zsnapdb undo`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.cli.opened import of_instance
from zsnapdb.cli.options import AsJson, ConfigFile, InstanceName
from zsnapdb.cli.output import show

UndoneTransaction = Annotated[
    str, typer.Option("--gtid", metavar="GTID", help="The transaction, as `zsnapdb binlog find` prints its GTID.")
]
WrittenInto = Annotated[
    Path | None,
    typer.Option(
        "--into",
        metavar="FILE",
        help="Prove it (as with --try), and write the SQL that undoes it into this new file.",
        show_default=False,
    ),
]
TriedFirst = Annotated[
    bool,
    typer.Option(
        "--try", help="Run it on a clone of the server, and compare the rows with a clone right before the transaction."
    ),
]
Applied = Annotated[
    bool,
    typer.Option(
        "--apply", help="Run it on the server itself, after it passed on a clone; compare again before COMMIT."
    ),
]
UndoingUser = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME",
        help="An account that sees triggers, if that of the instance does not; with --apply: that may change the rows.",
        show_default="root",
    ),
]
UndoingPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="With --user: a file that holds only the password of that account.",
        show_default=False,
    ),
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="With --apply: do not ask.")]


def undo(
    gtid: UndoneTransaction,
    instance: InstanceName = None,
    into: WrittenInto = None,
    tried: TriedFirst = False,
    applied: Applied = False,
    user: UndoingUser = None,
    password_file: UndoingPasswordFile = None,
    yes: Unasked = False,
    config: ConfigFile = None,
    json: AsJson = False,
) -> None:
    """Show the rows that a transaction changed, and write the SQL that undoes it, or run it.

    It undoes all rows or none: a row that was changed since prevents it. Without --apply the server is not changed.
    """
    from zsnapdb.jobs.binlog import undo
    from zsnapdb.jobs.binlog import undo as job
    from zsnapdb.report import binlog as report

    settings, chosen = of_instance(config, instance)
    job.refuse_existing(into)
    if applied and not yes and not sys.stdin.isatty():
        raise UsageError("undo --apply asks before it changes rows, and nobody can answer here", hint="add --yes")
    account = user or "root"
    writing = chosen
    if account != chosen.settings.user and (user or applied or chosen.settings.socket):
        writing = chosen.logging_in_as(account, password_file)
        chosen = job.who_sees_triggers(chosen, writing, is_named=user is not None or applied)
    undone = job.undo(chosen, gtid)
    if tried or applied or into is not None:
        from zsnapdb.jobs.clone.undo_trial import prove

        job.refuse_conflicts(undone)
        if applied:
            undo.check(writing)
        proof = prove(settings, chosen, gtid, undone.changes)
        undone = replace(undone, changes=proof.changes, is_tried=True)
    if into is not None:
        undone = job.write(chosen, undone, into)
    if applied:
        question = f"Undo {len(undone.changes)} changes of rows on the server of {chosen.name}?"
        if yes or typer.confirm(question, default=False, err=True):
            undone = undo.apply(writing, undone, proof.before)
    show(report.UndoView(undone), json)
