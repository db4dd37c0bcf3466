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
            help="latest, latest-backup, a backup id, a time with its zone, a GTID, or before-GTID.",
        ),
    ] = "latest",
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="DATASET", help="A new dataset for the restored volumes.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="NAME", help="Without --target: go to POOL/zsnapdb/restored/NAME.", show_default="INSTANCE"
        ),
    ] = None,
    handover: Annotated[
        str, typer.Option("--handover", metavar="HOW", help=f"What becomes of it: {', '.join(_KINDS)}.")
    ] = "stopped",
    port: Annotated[
        int | None, typer.Option("--port", help="Its port, with run and replica.", show_default="a free one of clones")
    ] = None,
    server_id: Annotated[
        int | None,
        typer.Option("--server-id", help="Its server_id, with run and replica.", show_default="a random one"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="HOST:PORT", help="With replica: what to replicate from.", show_default=False),
    ] = None,
    source_user: Annotated[str, typer.Option("--source-user", help="With replica: the account there.")] = "replica",
    source_password_file: Annotated[
        Path | None, typer.Option("--source-password-file", help="With replica: its password.", show_default=False)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a restore that was interrupted (--target, if there are several)."),
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Remove what an interrupted restore made.")] = False,
    step: Annotated[bool, typer.Option("--step", help="Ask before each step.")] = False,
    stop_after: Annotated[
        str | None,
        typer.Option("--stop-after", metavar="STEP", help="Stop behind this step, for --resume.", show_default=False),
    ] = None,
    config: ConfigFile = None,
    plan: PlanOnly = False,
    json: AsJson = False,
) -> None:
    """Restore to a backup, a time or a GTID into a new dataset, and check that the server there holds exactly that."""
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
    confirm = _ask if step else _go_on
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


def _go_on(_step: Step) -> bool:
    return True


def _ask(step: Step) -> bool:
    return typer.confirm(f"{step.name}: {step.describe()}?", default=True, err=True)


def handover_of(
    kind: str, port: int | None, server_id: int | None, source: str | None, user: str, password_file: Path | None
) -> Handover:
    """Return the hand-over the options ask for. PreflightError if they ask for none there is."""
    from zsnapdb.jobs.restore.handover_plan import Handover, SourceAddress

    if kind not in _KINDS:
        raise PreflightError(f"--handover {kind!r} is none of {', '.join(_KINDS)}", hint="see `zsnapdb restore --help`")
    address = None
    if source is not None:
        host, colon, number = source.rpartition(":")
        if not colon or not number.isdigit():
            raise PreflightError(f"--source {source!r} is not host:port", hint="such as db1.example.org:3306")
        address = SourceAddress(host, int(number), user, password_file)
    return Handover(kind, port, server_id, address)  # type: ignore[arg-type]
