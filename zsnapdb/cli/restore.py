"""`zsnapdb restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.cli.options import AsJson, ConfigFile, NamedInstance, PlanOnly
from zsnapdb.cli.output import show
from zsnapdb.errors import PreflightError

if TYPE_CHECKING:
    from zsnapdb.jobs.restore.handover_plan import Handover
    from zsnapdb.jobs.restore.run import Step

_KINDS = ("stopped", "run", "promote", "replica")


def restore(
    instance: NamedInstance,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POINT",
            help="The point: latest, latest-backup, a backup id, a time with its zone, a GTID, or before-GTID.",
        ),
    ] = "latest",
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="DATASET", help="The new dataset for the restored volumes.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Without --target: restore to POOL/zsnapdb/restored/NAME.",
            show_default="INSTANCE",
        ),
    ] = None,
    handover: Annotated[
        str,
        typer.Option("--handover", metavar="HOW", help=f"How to hand over the restored server: {', '.join(_KINDS)}."),
    ] = "stopped",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="NUMBER",
            help="With run and replica: the port of the restored server.",
            show_default="a free port of the range for clones",
        ),
    ] = None,
    server_id: Annotated[
        int | None,
        typer.Option(
            "--server-id",
            metavar="NUMBER",
            help="With run and replica: the server_id of the restored server.",
            show_default="random",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="HOST:PORT", help="With replica: the replication source.", show_default=False),
    ] = None,
    source_user: Annotated[
        str, typer.Option("--source-user", metavar="USER", help="With replica: the replication account on the source.")
    ] = "replica",
    source_password_file: Annotated[
        Path | None,
        typer.Option(
            "--source-password-file",
            metavar="FILE",
            help="With replica: a file with the password of that account.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue an interrupted restore (with --target if there are several)."),
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Remove the datasets of an interrupted restore.")] = False,
    step: Annotated[bool, typer.Option("--step", help="Ask for confirmation before each step.")] = False,
    stop_after: Annotated[
        str | None,
        typer.Option(
            "--stop-after",
            metavar="STEP",
            help="Stop after this step; continue later with --resume.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Restore an instance to a backup, a time or a GTID.

    The data goes to a new dataset. A server is started there to check that the data is exactly in the requested state.
    """
    from zsnapdb.cli.progress import Terminal
    from zsnapdb.config import load
    from zsnapdb.jobs.instance import Instance
    from zsnapdb.jobs.restore import run as job
    from zsnapdb.report.restore import result as report

    settings = load(config)
    terminal = Terminal()
    chosen = Instance.of(settings, instance, terminal)
    if abandon:
        show(report.AbandonedView(job.abandon(settings, chosen, target)), json)
        return
    confirm = _confirm_on_terminal if step else _always_continue
    if resume:
        result = job.resume(settings, chosen, target, confirm, stop_after)
    else:
        request = job.RestoreRequest(
            to, target, name, handover_of(handover, port, server_id, source, source_user, source_password_file)
        )
        if plan:
            repository = chosen.open_repository()
            planned = job.plan(settings, chosen, repository, request)
            findings = job.examine(settings, chosen, repository, planned)
            show(report.RestorePlanView(planned, findings), json)
            return
        result = job.restore(settings, chosen, request, confirm, stop_after)
    terminal.end()
    show(report.RestoreView(result), json)


def _always_continue(_step: Step) -> bool:
    return True


def _confirm_on_terminal(step: Step) -> bool:
    return typer.confirm(f"{step.name}: {step.describe()}?", default=True, err=True)


def handover_of(
    kind: str, port: int | None, server_id: int | None, source: str | None, user: str, password_file: Path | None
) -> Handover:
    """Return the handover that the options request. PreflightError if the options are invalid."""
    from zsnapdb.jobs.restore.handover_plan import Handover, SourceAddress

    if kind not in _KINDS:
        raise PreflightError(
            f"invalid --handover {kind!r}; choose from {', '.join(_KINDS)}", hint="see `zsnapdb restore --help`"
        )
    address = None
    if source is not None:
        host, colon, number = source.rpartition(":")
        if not colon or not number.isdigit():
            raise PreflightError(
                f"invalid --source {source!r}; expected HOST:PORT", hint="for example db1.example.org:3306"
            )
        address = SourceAddress(host, int(number), user, password_file)
    return Handover(kind, port, server_id, address)  # type: ignore[arg-type]
