"""`zsnapdb rescue` and `zsnapdb undo`: recovery of single tables, schemas and transactions."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.base.untrusted_text import printed
from zsnapdb.cli import completion, options
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.options import flag, option
from zsnapdb.cli.output import show

if TYPE_CHECKING:
    from zsnapdb.report.binlog import UndoView

RescuedTable = Annotated[
    str | None, option("--table", "SCHEMA.TABLE", "Table to rescue.", autocompletion=completion.tables)
]
RescuedSchema = Annotated[str | None, option("--schema", "SCHEMA", "Schema to rescue, instead of a table.")]
RescuePoint = Annotated[str, option("--to", "POINT", f"Point: {options.POINT}.")]
RescueTarget = Annotated[
    str | None, option("--into", "FILE|URL", "New dump file, or mysql://user@host:port/schema (?socket=/path).")
]
TargetInstance = Annotated[
    str | None,
    option(
        "--into-instance",
        "INSTANCE",
        "Instance whose server gets the table, instead of --into.",
        autocompletion=completion.instances,
    ),
]
TargetUser = Annotated[
    str | None,
    option(
        "--user",
        "NAME",
        "With --into-instance: account that may create tables there, on the instance's socket or address.",
        show_default="root",
    ),
]
TargetPasswordFile = Annotated[
    Path | None,
    option("--password-file", "FILE", "File that holds only the password of the account on the live server."),
]
RescuedName = Annotated[
    str | None,
    option("--as", "NAME", "New name on the live server.", show_default="the old name and the time of the backup"),
]
TransportName = Annotated[
    str, option("--transport", "HOW", "Transport of the table to a live server: auto, tablespace or dump.")
]
CommandTimeout = Annotated[
    str, option("--timeout", "DURATION", "Time limit of each long command, with a unit: s, m, h.")
]


def rescue(
    instance: options.InstanceName = None,
    table: RescuedTable = None,
    schema: RescuedSchema = None,
    to: RescuePoint = "latest-backup",
    into: RescueTarget = None,
    into_instance: TargetInstance = None,
    user: TargetUser = None,
    password_file: TargetPasswordFile = None,
    name: RescuedName = None,
    transport: TransportName = "auto",
    timeout: CommandTimeout = "12h",
    repository: options.RepositoryName = None,
    accepts_older: options.AcceptOlder = False,
    history: options.History = None,
    wait: options.WaitTime = "0s",
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Copy one table or one schema out of a backup.

    The copy goes to a dump file, or to a live server under a new name. No existing table or file is overwritten.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.trial import rescue as job
    from zsnapdb.report import trial as report

    settings, chosen = instance_context(config, instance, repository, binary=binary, wait=wait)
    destination = job.destination(
        settings, into=into, instance=into_instance, user=user, password_file=password_file, tls=chosen.tls
    )
    request = job.RescueRequest(
        job.original_name(table, schema),
        to,
        destination,
        name,
        job.transport(transport),
        parse_duration(timeout),
        accepts_older,
        history,
    )
    if plan:
        planned = job.plan_near(settings, chosen, request)
        show(report.RescuePlanView(planned), json)
        return
    done = job.rescue(settings, chosen, request)
    show(report.RescueView(done), json)


WholeTable = Annotated[str | None, typer.Option("--table", metavar="SCHEMA.TABLE", hidden=True)]
WholeSchema = Annotated[str | None, typer.Option("--schema", metavar="SCHEMA", hidden=True)]
"""Options that people try with `restore` and `undo`, although only `rescue` supports them.

The error refers to `rescue`.
"""


def refuse_part(
    command: str, config: Path | None, instance: str | None, table: str | None, schema: str | None, to: str
) -> None:
    """Raise UsageError with the correct `rescue` command if a table or schema is given.

    The command `command` accepts neither a table nor a schema.
    """
    part = table if table is not None else schema
    if part is None:
        return
    name, _ = configuration(config).one_instance(instance)
    chosen, point, into = (shlex.quote(word) for word in (part, to, f"{part}.sql".replace("/", "_")))
    led = (
        f"`zsnapdb rescue {name} --table {chosen} --to {point} --into {into}`"
        if table is not None
        else f"`zsnapdb rescue {name} --schema {chosen} --to {point} --into {into}`"
    )
    raise UsageError(
        f"{command} takes no {'--table' if table is not None else '--schema'}; rescue copies one table or one schema"
        " out of a backup",
        hint=f"for the state of {to} run {led}",
    )


UndoneTransaction = Annotated[
    str | None, option("--gtid", "GTID", "Transaction to undo. `zsnapdb binlog find` prints its GTID.")
]
WrittenInto = Annotated[
    Path | None, option("--into", "FILE", "Test the undo (as with --try), and write its SQL into this new file.")
]
TriedFirst = Annotated[
    bool, flag("--try", "Run it on a clone, and compare the rows with their state before the transaction.")
]
Applied = Annotated[bool, flag("--apply", "Run it on the server after a test on a clone. Compare again before COMMIT.")]
UndoingUser = Annotated[
    str | None,
    option(
        "--user",
        "NAME",
        "Account that sees triggers. With --apply it must also be able to change the rows.",
        show_default="root",
    ),
]
UndoingPasswordFile = Annotated[
    Path | None, option("--password-file", "FILE", "With --user: file that holds only the password of that account.")
]
Unasked = Annotated[bool, typer.Option("--yes", "-y", help="With --apply: skip the confirmation.")]


def undo(
    instance: options.InstanceName = None,
    gtid: UndoneTransaction = None,
    table: WholeTable = None,
    schema: WholeSchema = None,
    into: WrittenInto = None,
    tried: TriedFirst = False,
    applied: Applied = False,
    user: UndoingUser = None,
    password_file: UndoingPasswordFile = None,
    yes: Unasked = False,
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Show the rows that a transaction changed, and write or run the SQL that undoes it.

    Either all rows are undone or none. If a row was changed later, the undo is refused. Without --apply the server is
    not changed.
    """
    from zsnapdb.jobs.binlog import undo
    from zsnapdb.jobs.binlog import undo as job
    from zsnapdb.report import binlog as report

    refuse_part("undo", config, instance, table, schema, "10m")
    settings, chosen = instance_context(config, instance)
    if gtid is None:
        raise UsageError(
            "undo needs a transaction", hint=f"`zsnapdb binlog find {chosen.name}` lists them; add --gtid GTID"
        )
    job.refuse_existing(into)
    if applied and not yes and not sys.stdin.isatty():
        raise UsageError("undo --apply asks for a confirmation, which needs a terminal", hint="add --yes")
    account = user or "root"
    writing = chosen
    if account != chosen.settings.user and (user or applied or chosen.settings.socket):
        writing = chosen.logging_in_as(account, password_file)
        chosen = job.who_sees_triggers(chosen, writing, is_named=user is not None or applied)
    undone = job.undo(chosen, gtid)
    shown = _show_rows(report.UndoView(undone), []) if applied and not yes else []
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
        if not yes:
            # The tested changes may have more rows than the binlog, such as those that foreign keys changed.
            _show_rows(report.UndoView(undone), shown)
        question = f"Undo {len(undone.changes)} changes of rows on the server of {chosen.name}?"
        if yes or typer.confirm(question, default=False, err=True):
            chosen.events.tell(f"undoing the changes on the server of {chosen.name}")
            undone = undo.apply(writing, undone, proof.before)
    show(report.UndoView(undone, settings.clones.keep_unused), json)


def _show_rows(view: UndoView, before: list[str]) -> list[str]:
    """Print the changed rows to stderr, unless they are those shown before. Return the lines."""
    rows = view.rows()
    if sorted(rows) != sorted(before):
        print(printed("\n".join(rows)), file=sys.stderr, flush=True)
    return rows
