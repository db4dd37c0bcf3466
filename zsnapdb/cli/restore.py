"""`zsnapdb restore` of servers and of virtual machines, `zsnapdb retrieve`, `zsnapdb rewind` and `zsnapdb runbook`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zsnapdb.base.errors import UsageError
from zsnapdb.cli import options
from zsnapdb.cli.command_context import configuration, instance_context
from zsnapdb.cli.idempotency import CommandAnswer, Repeatable, show_once
from zsnapdb.cli.options import flag, option
from zsnapdb.cli.output import show, show_errors
from zsnapdb.cli.rescue import WholeSchema, WholeTable, refuse_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zsnapdb.config.settings import Settings
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.restore.finished_restores import FinishedRestore
    from zsnapdb.jobs.restore.handover_plan import Handover
    from zsnapdb.jobs.restore.plan import RestoreRequest
    from zsnapdb.jobs.restore.rewind import Outage
    from zsnapdb.jobs.restore.roll_forward import ContinueRequest
    from zsnapdb.planning.backup.fitness import FitnessFinding
    from zsnapdb.planning.restore.steps import MachineStep, Step
    from zsnapdb.report.view import View

MOST_DAYS = 365
RequestedPoint = Annotated[str, option("--to", "POINT", f"Point: {options.POINT}.")]
ContinueTo = Annotated[
    str | None,
    option(
        "--continue-to",
        "POINT",
        "Continue a finished restore to a later time or GTID, `next` transaction, or `here` (handover).",
    ),
]
Resume = Annotated[bool, flag("--resume", "Continue an interrupted restore (with --target if there are several).")]
Abandon = Annotated[
    bool, flag("--abandon", "Cancel an interrupted restore or rewind, or remove a finished restore (--target).")
]
Unasked = Annotated[
    bool, typer.Option("--yes", "-y", help="With --abandon: remove a finished restore without a confirmation.")
]
ConfirmSteps = Annotated[bool, flag("--step", "Ask for confirmation before each step.")]
StopAfter = Annotated[str | None, option("--stop-after", "STEP", "Stop after this step; continue later with --resume.")]


def restore(
    instance: options.InstanceName = None,
    to: RequestedPoint = "latest",
    table: WholeTable = None,
    schema: WholeSchema = None,
    accepts_older: options.AcceptOlder = False,
    history: options.History = None,
    origin: options.RestoreFrom = "repository",
    target: options.RestoreTarget = None,
    name: options.RestoreName = None,
    handover: options.HandoverName = "stopped",
    port: options.RestoredPort = None,
    server_id: options.RestoredServerId = None,
    source: options.ReplicationAddress = None,
    source_user: options.ReplicationUser = "replica",
    source_password_file: options.ReplicationPasswordFile = None,
    further: ContinueTo = None,
    resume: Resume = False,
    abandon: Abandon = False,
    step: ConfirmSteps = False,
    stop_after: StopAfter = None,
    yes: Unasked = False,
    with_foreign_snapshots: options.WithForeignSnapshots = False,
    replicas_will_be_rebuilt: options.ReplicasWillBeRebuilt = False,
    repository: options.RepositoryName = None,
    once: options.Once = None,
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Restore an instance to a backup, a time or a GTID. With --plan: exit code 4 if it would be refused.

    The data is written to a new dataset. A server is started on it to check that the data is exactly in the requested
    state.

    --continue-to needs a restore with the handover `stopped` or `look`. If there are several such restores, --target
    selects one.

    --abandon with the --target of a finished restore ends its server and destroys its datasets.

    With --once the command can be repeated. A finished restore of that run is shown, and an interrupted restore
    resumes. A restore that may have started to replace the server continues only with --resume.
    """
    from zsnapdb.jobs.restore.plan import RestoreRequest, origin_of

    refuse_part("restore", config, instance, table, schema, "10m" if to == "latest" else to)
    _refuse_contradictions(to, further, resume=resume, abandon=abandon, plan=plan, once=once)
    settings, chosen = instance_context(config, instance, repository, binary=binary)
    chosen = chosen.rebuilding_replicas(replicas_will_be_rebuilt)
    way = RestoreWay(target, resume, abandon, step, stop_after, with_foreign_snapshots, plan, once, yes)
    if chosen.settings.vm is not None:
        _refuse_server_options(handover, history, port, server_id, source, origin, further)
        restore_machine(settings, chosen, to, name, accepts_older, way, json)
        return
    last = handover_of(handover, port, server_id, source, source_user, source_password_file)
    volumes = origin_of(origin)
    request = RestoreRequest(to, target, name, last, accepts_older=accepts_older, history=history, origin=volumes)
    restore_server(settings, chosen, request, further, way, json)


@dataclass(frozen=True)
class RestoreWay:
    """The options of the command that apply both to servers and to machines."""

    target: str | None
    resume: bool
    abandon: bool
    step: bool
    stop_after: str | None
    with_foreign_snapshots: bool
    plan: bool
    once: str | None
    yes: bool

    def confirm(self, step: Step | MachineStep) -> bool:
        """Ask for a confirmation of the step, if the command requires one."""
        return not self.step or typer.confirm(f"{step.name}: {step.describe()}?", default=True, err=True)


def restore_server(
    settings: Settings, instance: Instance, request: RestoreRequest, further: str | None, way: RestoreWay, json: bool
) -> None:
    """Restore, continue to the point `further`, resume, abandon, or show the plan, as the options require."""
    from zsnapdb.report import restore as report

    may_go = way.with_foreign_snapshots
    if way.abandon:
        from zsnapdb.jobs.restore import finished_restores
        from zsnapdb.jobs.restore import server_restore as giving_up

        finished = finished_restores.find(settings, instance, way.target)
        if finished is not None:
            _confirm_removal(finished, way)
            finished_restores.remove(settings, instance, finished, with_foreign_snapshots=may_go)
            show(report.AbandonedView(finished.journal.plan), json)
            return
        given_up = giving_up.abandon(settings, instance, way.target, with_foreign_snapshots=may_go)
        show(report.AbandonedView(given_up.plan, given_up.left), json)
        return
    later = None
    if further is not None:
        from zsnapdb.jobs.restore.roll_forward import ContinueRequest

        later = ContinueRequest(further, way.target, request.handover, request.origin, request.history)
    if way.plan:
        _show_plan(settings, instance, request, later, json)
        return

    def make() -> CommandAnswer:
        from zsnapdb.jobs.restore import roll_forward as continuing
        from zsnapdb.jobs.restore import server_restore as job

        if way.resume:
            result = job.resume(
                settings, instance, way.target, way.confirm, way.stop_after, with_foreign_snapshots=may_go
            )
        elif later is not None:
            result = continuing.roll_forward(settings, instance, later, way.confirm, way.stop_after)
        else:
            result = job.restore(settings, instance, request, way.confirm, way.stop_after)
        return CommandAnswer(report.RestoreView(result))

    def made() -> CommandAnswer | None:
        from zsnapdb.jobs.restore import run_results as of_run

        known = of_run.restored(settings, instance, way.confirm, way.stop_after)
        return CommandAnswer(report.RestoreView(known)) if known is not None else None

    about = describe_restore(instance.name, request.to, way.target or request.name, request.handover.kind)
    command = Repeatable("restore", about, made=made, tell=instance.events.tell)
    show_once(instance.host, way.once, command, make, json)


def _confirm_removal(finished: FinishedRestore, way: RestoreWay) -> None:
    """Ask before a finished restore is removed, because a user may have written to its server."""
    if way.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{finished.describe()}; its removal needs a confirmation on a terminal", hint="add --yes")
    typer.confirm(f"{finished.describe()}.\nDestroy it with everything that was written to it?", abort=True, err=True)


def _refuse_contradictions(
    to: str, further: str | None, *, resume: bool, abandon: bool, plan: bool, once: str | None
) -> None:
    """Raise UsageError if options exclude each other."""
    hint = "see `zsnapdb restore --help`"
    if further is not None and (to != "latest" or resume or abandon):
        raise UsageError("--continue-to excludes --to, --resume and --abandon", hint=hint)
    if plan and (resume or abandon):
        raise UsageError("--plan excludes --resume and --abandon", hint=hint)
    if resume and abandon:
        raise UsageError("--resume and --abandon exclude each other", hint=hint)
    if once is not None and (resume or abandon or further is not None):
        raise UsageError(
            "--once excludes --resume, --abandon and --continue-to",
            hint="repeat the original command; it continues the restore",
        )


def _refuse_server_options(
    handover: str,
    history: str | None,
    port: int | None,
    server_id: int | None,
    source: str | None,
    origin: str,
    further: str | None,
) -> None:
    """Raise UsageError for an option that is not valid for a virtual machine."""
    options.refuse_for_machines(
        "a machine is restored from the repository, and stays off",
        handover=handover != "stopped",
        history=history is not None,
        port=port is not None,
        server_id=server_id is not None,
        source=source is not None,
        origin=origin != "repository",
        continue_to=further is not None,
    )


def _show_plan(
    settings: Settings, instance: Instance, request: RestoreRequest, later: ContinueRequest | None, json: bool
) -> None:
    """Show the plan. The modules that execute a plan are not imported."""
    from zsnapdb.jobs.restore import plan as restore_plan
    from zsnapdb.jobs.restore import preflight
    from zsnapdb.jobs.restore.offline_repository import open_for_restore
    from zsnapdb.report import restore as report

    if later is not None:
        from zsnapdb.jobs.host import affected_replicas
        from zsnapdb.jobs.restore import roll_forward as continuing

        planned = continuing.plan_now(settings, instance, later).plan
        findings = affected_replicas.examine(instance, planned)
    else:
        repository = open_for_restore(instance, request.origin)
        planned = restore_plan.make(settings, instance, repository, request)
        findings = preflight.examine(settings, instance, repository, planned)
    _end_plan(report.RestorePlanView(planned, findings), findings, json)


def _end_plan(view: View, findings: Sequence[FitnessFinding], json: bool) -> None:
    """Show the plan and its findings. If the command would be refused, exit with the exit code of the refusal."""
    from zsnapdb.jobs.restore.preflight import expected_error

    show(view, json)
    expected = expected_error(findings)
    if expected is not None:
        raise typer.Exit(expected.exit_code)


def is_port(text: str) -> bool:
    """Return whether the text is the number of a TCP port."""
    return re.fullmatch(r"[1-9][0-9]{0,4}", text) is not None and int(text) < 1 << 16


def handover_of(
    kind: str, port: int | None, server_id: int | None, source: str | None, user: str, password_file: Path | None
) -> Handover:
    """Return the handover that the options describe.

    Raises: UsageError if the options are invalid.
    """
    from zsnapdb.jobs.restore.handover_plan import Handover, SourceAddress

    if kind not in options.HANDOVER_KINDS:
        raise UsageError(
            f"invalid --handover {kind!r}; choose from {', '.join(options.HANDOVER_KINDS)}",
            hint="see `zsnapdb restore --help`",
        )
    address = None
    if source is not None:
        host, colon, number = source.rpartition(":")
        if not colon or not host or not is_port(number):
            raise UsageError(
                f"invalid --source {source!r}; expected HOST:PORT", hint="for example db1.example.org:3306"
            )
        address = SourceAddress(host, int(number), user, password_file)
    return Handover(kind, port, server_id, address)  # type: ignore[arg-type]


def restore_machine(
    settings: Settings, instance: Instance, to: str, name: str | None, accepts_older: bool, way: RestoreWay, json: bool
) -> None:
    """Restore, resume, abandon, or show the plan, as the options require."""
    from zsnapdb.jobs.restore import machine_restore as job
    from zsnapdb.report import restore as report

    may_go = way.with_foreign_snapshots
    if way.abandon:
        given_up = job.abandon(settings, instance, way.target, with_foreign_snapshots=may_go)
        show(report.MachineAbandonedView(given_up), json)
        return
    request = job.MachineRestoreRequest(to, way.target, name, accepts_older)
    if way.plan:
        repository = instance.open_repository()
        planned = job.make(settings, instance, repository, request)
        findings = job.examine(job.MachineWork(settings, instance, repository, planned))
        _end_plan(report.MachineRestorePlanView(planned, findings), findings, json)
        return

    def make() -> CommandAnswer:
        result = (
            job.resume(settings, instance, way.target, way.confirm, way.stop_after, with_foreign_snapshots=may_go)
            if way.resume
            else job.restore(settings, instance, request, way.confirm, way.stop_after)
        )
        return CommandAnswer(report.MachineRestoreView(result))

    def made() -> CommandAnswer | None:
        from zsnapdb.jobs.restore import run_results as of_run

        known = of_run.restored_machine(settings, instance, way.confirm, way.stop_after)
        return CommandAnswer(report.MachineRestoreView(known)) if known is not None else None

    about = describe_restore(instance.name, to, way.target or name)
    command = Repeatable("restore", about, made=made, tell=instance.events.tell)
    show_once(instance.host, way.once, command, make, json)


def describe_restore(instance: str, to: str, place: str | None, handover: str = "stopped") -> str:
    """Return a description of the restore. A repeated command has the same description."""
    where = f" as {place}" if place else ""
    return f"{instance} to {to}{where}, {handover}"


RetrievalTier = Annotated[str, option("--tier", "TIER", "Retrieval tier: standard, or bulk (slower and cheaper).")]
RetrievedDays = Annotated[
    int, option("--days", "N", "Days for which the retrieved objects can be read.", min=1, max=MOST_DAYS)
]
RetrievalWait = Annotated[
    str, option("--wait", "DURATION", "Longest wait until all objects can be read, for example 2d. Exit code 6 then.")
]


def retrieve(
    instance: options.InstanceName = None,
    to: RequestedPoint = "latest",
    accepts_older: options.AcceptOlder = False,
    history: options.History = None,
    tier: RetrievalTier = "standard",
    days: RetrievedDays = 7,
    wait: RetrievalWait = "0s",
    repository: options.RepositoryName = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Retrieve the objects that a restore needs from the archive classes of an S3 bucket.

    The command starts the retrieval of each archived chunk and binlog. You may repeat the command: retrievals that are
    running or finished are not started again. A drill or copy of the backup needs the same objects.
    """
    from zsnapdb.base.quantities import parse_duration
    from zsnapdb.jobs.restore import retrieval as job
    from zsnapdb.planning.repository.archive_classes import parse_tier
    from zsnapdb.report import restore as report

    _, chosen = instance_context(config, instance, repository)
    request = job.RetrievalRequest(to, parse_tier(tier), days, accepts_older, history)
    if plan:
        show(report.RetrievalPlanView(job.plan(chosen, request)), json)
        return
    result = job.retrieve(chosen, request, parse_duration(wait))
    show(report.RetrievalView(result), json)
    error = result.alarm()
    if error is not None:
        show_errors([error])
        raise typer.Exit(error.exit_code)


OutputFormat = Annotated[str, option("--format", "FORM", "Output format: md or html.")]


def runbook(
    instance: options.InstanceName = None,
    to: RequestedPoint = "latest",
    accepts_older: options.AcceptOlder = False,
    history: options.History = None,
    origin: options.RestoreFrom = "repository",
    target: options.RestoreTarget = None,
    name: options.RestoreName = None,
    handover: options.HandoverName = "run",
    port: options.RestoredPort = None,
    server_id: options.RestoredServerId = None,
    source: options.ReplicationAddress = None,
    source_user: options.ReplicationUser = "replica",
    source_password_file: options.ReplicationPasswordFile = None,
    repository: options.RepositoryName = None,
    form: OutputFormat = "md",
    config: options.ConfigFile = None,
    json: options.AsJson = False,
) -> None:
    """Print a restore as numbered steps for a person.

    The steps are those that `zsnapdb restore` would execute now. Each step has its commands, checks, expected duration,
    and the actions after a failure.
    """
    from zsnapdb.jobs.base.instance import Instance
    from zsnapdb.jobs.restore import runbook as job
    from zsnapdb.jobs.restore.plan import RestoreRequest, origin_of
    from zsnapdb.report import runbook as report

    if form not in ("md", "html"):
        raise typer.BadParameter(f"invalid --format {form!r}; choose md or html")
    settings = configuration(config)
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


RewindPoint = Annotated[str | None, option("--to", "POINT", f"Point: {options.POINT}, or local set.")]
RewindFrom = Annotated[
    str,
    typer.Option(
        "--origin",
        "--from",
        metavar="ORIGIN",
        help="Origin of the volumes: auto (prefers this host), local (only this host) or repository.",
    ),
]
RewoundServerId = Annotated[
    int | None,
    option(
        "--server-id",
        "NUMBER",
        "With MariaDB: new server_id of the server.",
        min=1,
        max=options.GREATEST_SERVER_ID,
        show_default="random",
    ),
]

ReplicasRebuilt = Annotated[
    bool, flag("--replicas-rebuilt", "Only confirm that the replicas named by doctor were rebuilt.")
]


def _allows_outage(chosen: Instance, yes: bool, outage: Outage) -> bool:
    """Return whether the user allows the outage of a rewind. With `yes`, only report the loss."""
    from zsnapdb.report import restore as report

    if not yes:
        return typer.confirm(report.question(outage), default=False, err=True)
    for line in report.loss_lines(outage):
        chosen.events.tell(line.strip())
    if outage.archived.missing:
        chosen.events.warn(f"the last binlogs are not archived: {outage.archived.missing}")
    return True


def rewind(
    instance: options.InstanceName = None,
    to: RewindPoint = None,
    origin: RewindFrom = "auto",
    history: options.History = None,
    server_id: RewoundServerId = None,
    resume: Annotated[bool, flag("--resume", "Resume an interrupted rewind.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Stop the server without a confirmation.")] = False,
    no_backup: Annotated[bool, flag("--no-backup", "Skip the backup at the end. The next one is urgent.")] = False,
    replicas_will_be_rebuilt: options.ReplicasWillBeRebuilt = False,
    replicas_rebuilt: ReplicasRebuilt = False,
    wait: options.WaitTime = "0s",
    binary: options.ServerBinary = None,
    config: options.ConfigFile = None,
    plan: options.PlanOnly = False,
    json: options.AsJson = False,
) -> None:
    """Rewind the server of an instance to a point, in place. With --plan: exit code 4 if it would be refused.

    The state is prepared and checked next to the running server, from the snapshots and binlogs on this host. Then the
    server is stopped, its datasets are replaced (the old ones are kept), and the server is started again. A backup of
    the new history follows.
    """
    from zsnapdb.jobs.restore import rewind as job
    from zsnapdb.jobs.restore.plan import origin_of
    from zsnapdb.report import restore as report

    if [to is not None, resume, replicas_rebuilt].count(True) != 1:
        raise UsageError("a rewind needs one of --to, --resume and --replicas-rebuilt", hint="for example --to 10m")
    settings, chosen = instance_context(config, instance, binary=binary, wait=wait)
    if replicas_rebuilt:
        from zsnapdb.jobs.host import affected_replicas

        show(report.ReplicasRebuiltView(chosen.name, affected_replicas.forget(chosen)), json)
        return
    chosen = chosen.rebuilding_replicas(replicas_will_be_rebuilt)
    ask = partial(_allows_outage, chosen, yes)
    if not yes and not plan and not sys.stdin.isatty():
        raise UsageError("a rewind stops the server; the confirmation needs a terminal", hint="add --yes")
    if resume:
        if plan:
            raise UsageError("--plan and --resume exclude each other", hint="see `zsnapdb rewind --help`")
        result = job.resume(settings, chosen, ask, backs_up=not no_backup)
    else:
        request = job.RewindRequest(to or "", origin_of(origin), server_id, history)
        planned = job.plan(settings, chosen, request)
        if plan:
            findings = job.examine(settings, chosen, planned)
            left_out = job.left_out(chosen, planned)
            _end_plan(report.RewindPlanView(planned, findings, left_out), findings, json)
            return
        result = job.rewind(settings, chosen, planned, ask, backs_up=not no_backup)
    show(report.RewindView(result), json)
    if result.backup_error is not None:
        raise typer.Exit(result.backup_error.exit_code)
