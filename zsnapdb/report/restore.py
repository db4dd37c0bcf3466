"""Views of restores and rewinds, and of their plans."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.base.quantities import format_duration, quantity, size
from zsnapdb.documents import restore as documents
from zsnapdb.documents.base import moment
from zsnapdb.planning.restore.replica_checks import NotedReader, judge
from zsnapdb.planning.restore.steps import LeaveStopped, Receive, Replay, Step
from zsnapdb.report.binlog import counts
from zsnapdb.report.view import View

if TYPE_CHECKING:
    from pathlib import Path

    from zsnapdb.jobs.restore.left_out import ArchivedRest
    from zsnapdb.jobs.restore.machine_restore import MachineRestoreResult
    from zsnapdb.jobs.restore.rewind import Outage, RewindPlan, RewindResult
    from zsnapdb.jobs.restore.server_restore import RestoreResult
    from zsnapdb.planning.backup.fitness import FitnessFinding
    from zsnapdb.planning.restore.left_out import LeftOut
    from zsnapdb.planning.restore.plan import MachineRestorePlan, RestorePlan, RestorePoint
    from zsnapdb.planning.restore.steps import MachineStep


def _start_of(plan: RestorePlan, option_file: Path) -> str:
    """Return a line about the start of a restored server.

    Root must not use the option file, because the account of the server can change it.
    """
    if not isinstance(plan.steps[-1], LeaveStopped):
        return f"  options   {option_file}; never start it as root with this file"
    if plan.point.gtids is None:
        return "  start it  restore it again with --handover run"
    words = ("zsnapdb", "restore", plan.instance, "--continue-to", "here", "--handover", "run")
    return f"  start it  {shlex.join((*words, '--target', plan.layout.top))}"


class RestorePlanView(View, kind="restore-plan", document=documents.RestorePlanDocument):
    """The plan of a restore, and the findings of its preflight."""

    plan: RestorePlan
    findings: Sequence[FitnessFinding] = ()

    def text(self) -> str:
        plan = self.plan
        lines = [
            (
                f"restore {plan.instance} to {plan.layout.top}, mounted at {plan.layout.mount}, from backup"
                f" {plan.backup_id}"
            ),
            *point_lines(plan.requested, plan.point),
        ]
        if plan.buffer_pool is not None:
            lines.append(f"  memory    {size(plan.buffer_pool)} of buffer pool to recover and replay")
        lines += [f"  {number}. {_step(step)}" for number, step in enumerate(plan.steps, 1)]
        return "\n".join([*lines, *_finding_lines(self.findings)])


def point_lines(requested: str, chosen: RestorePoint) -> list[str]:
    """Return lines with the requested point, the last included transaction, and the first omitted transaction."""
    lines = [f"  point     {requested}"]
    if chosen.last is not None:
        lines.append(f"  last in   {chosen.last.describe()}")
    if chosen.following is not None:
        lines.append(f"  first out {chosen.following.describe()}")
    if chosen.gtids is not None:
        lines.append(f"  holds     {chosen.gtids or '(no transactions)'}")
    return lines + [f"  note      {note}" for note in chosen.notes]


def _finding_lines(findings: Sequence[FitnessFinding]) -> list[str]:
    return [
        f"  {finding.severity.value:8s}  {finding.what}: {finding.detail}"
        + (f" ({finding.hint})" if finding.hint else "")
        for finding in findings
    ]


def _step(step: Step | MachineStep) -> str:
    text = step.describe()
    if isinstance(step, Receive):
        text += f", {size(step.stored_bytes)} to fetch"
    elif isinstance(step, Replay):
        text += f", {size(step.size)} of binlogs"
    return f"{step.name}: {text}"


class RestoreView(View, kind="restore", document=documents.RestoreDocument, read_from="result"):
    """A restore that is finished, or was stopped before a step."""

    result: RestoreResult

    def text(self) -> str:
        result = self.result
        plan = result.plan
        if result.next_step is not None:
            return (
                f"the restore to {plan.layout.top} waits before {_step(result.next_step)}\n"
                f"continue with --resume --target {plan.layout.top}"
            )
        what = f"point {plan.requested} (backup {plan.backup_id})" if plan.replays else f"backup {plan.backup_id}"
        place = next((renamed[1] for renamed in getattr(plan.steps[-1], "renames", ())[-1:]), plan.layout.top)
        lines = [
            f"{what} of {plan.instance} is restored to {place}",
            *([] if place != plan.layout.top else [f"  mounted   {plan.layout.mount}"]),
            f"  position  {result.position.describe()}, "
            + ("exactly the GTIDs of the plan" if plan.point.gtids is not None else "the server has no GTIDs"),
            f"  took      {result.receive_seconds:.1f} s to receive,"
            f" {result.recovery_seconds:.1f} s to recover and check"
            + (f", {result.replay_seconds:.1f} s to replay" if plan.replays else ""),
        ]
        handed_over = result.handed_over
        if handed_over is not None and handed_over.port is not None:
            lines.append(f"  runs      on port {handed_over.port}, process {handed_over.pid}")
        if handed_over is not None and handed_over.socket is not None:
            lines.append(f"  look      read-only, on the socket {handed_over.socket}, process {handed_over.pid}")
        if result.option_file is not None:
            lines.append(_start_of(plan, result.option_file))
        if handed_over is not None:
            lines += [f"  note      {note}" for note in handed_over.notes]
        return "\n".join(lines)


class AbandonedView(View, kind="restore-abandoned", document=documents.AbandonedDocument):
    """An abandoned restore. `left` is the state of the server that the restore would have replaced; empty if none."""

    plan: RestorePlan
    left: str = ""

    def text(self) -> str:
        what = f"the restore of {self.plan.instance} to {self.plan.layout.top} is abandoned; its datasets are destroyed"
        return f"{what}\n{self.left}" if self.left else what


class MachineRestorePlanView(View, kind="machine-restore-plan", document=documents.MachineRestorePlanDocument):
    """The plan of a machine's restore, and the findings of its preflight."""

    plan: MachineRestorePlan
    findings: Sequence[FitnessFinding] = ()

    def text(self) -> str:
        plan = self.plan
        lines = [
            f"restore the machine {plan.original} of {plan.instance} to {plan.top}, from backup {plan.backup_id}",
            f"  grade     {plan.grade}: {plan.grade_reason}",
            *(f"  note      {note}" for note in plan.notes),
            *(f"  {number}. {_step(step)}" for number, step in enumerate(plan.steps, 1)),
        ]
        return "\n".join([*lines, *_finding_lines(self.findings)])


class MachineRestoreView(View, kind="machine-restore", document=documents.MachineRestoreDocument, read_from="result"):
    """A machine's restore that is finished, or was stopped before a step."""

    result: MachineRestoreResult

    def text(self) -> str:
        plan, following = self.result.plan, self.result.next_step
        if following is not None:
            waits = f"the restore to {plan.top} waits before {_step(following)}"
            return f"{waits}\ncontinue with --resume --target {plan.top}"
        define = plan.define
        lines = [
            f"backup {plan.backup_id} of {plan.instance} is restored to {plan.top}",
            f"  grade     {plan.grade}: {plan.grade_reason}",
            f"  took      {sum(done.seconds for done in self.result.done):.1f} s",
        ]
        if define is not None:
            lines.append(f"  domain    {define.domain} ({define.uuid}) is defined and off; its links are down")
            lines.append(
                f"  start it  with `virsh start {define.domain}`; inside it is {plan.original}, with its host keys"
            )
        return "\n".join([*lines, *(f"  note      {note}" for note in plan.notes)])


class MachineAbandonedView(View, kind="machine-restore-abandoned", document=documents.MachineAbandonedDocument):
    """An abandoned restore of a machine."""

    plan: MachineRestorePlan

    def text(self) -> str:
        return f"the restore of {self.plan.instance} to {self.plan.top} is abandoned; its zvols are destroyed"


class ReplicasRebuiltView(View, kind="replicas-rebuilt", document=documents.ReplicasRebuiltDocument):
    """Replicas that an operator confirmed as rebuilt."""

    instance: str
    readers: Sequence[NotedReader]

    def text(self) -> str:
        if not self.readers:
            return f"no reader of the binlogs of {self.instance} was noted to be rebuilt"
        named = "; ".join(reader.who for reader in self.readers)
        return f"the readers of the binlogs of {self.instance} count as rebuilt: {named}"


def _origin(plan: RestorePlan) -> str:
    return "the snapshots on this host" if plan.clones else "the repository"


def _left_out_lines(left_out: LeftOut) -> list[str]:
    """Return lines with the number, the commit times and the tables of the left-out transactions."""
    lines = []
    if left_out.transactions is not None:
        least = "at least " if left_out.is_least else ""
        ends = [f"{word} {moment(time)}" for word, time in (("from", left_out.first), ("to", left_out.last)) if time]
        if left_out.first is not None and left_out.first == left_out.last:
            ends = [f"at {moment(left_out.first)}"]
        committed = f", committed {' '.join(ends)}" if ends else ""
        lines.append(f"  left out  {least}{quantity(left_out.transactions, 'transaction')}{committed}")
    tables = [f"{table.name} ({counts(table)})" for table in left_out.tables]
    if left_out.more_tables:
        tables.append(quantity(left_out.more_tables, "more table"))
    if left_out.statements:
        tables.append(f"{quantity(left_out.statements, 'statement')} such as DDL")
    if tables:
        lines.append(f"  changed   {', '.join(tables)}")
    return lines + [f"  unknown   {text}" for text in left_out.unknown]


def _archived_line(instance: str, archived: ArchivedRest) -> str:
    if archived.end is None:
        return f"  archived  NOT the last binlogs: {archived.missing or 'the server has none'}"
    way = f"zsnapdb restore {instance} --to latest --history {archived.history} --plan"
    return f"  archived  up to {archived.end.file}:{archived.end.offset}; to restore it: `{way}`"


def _salvage_line(plan: RestorePlan) -> str:
    return (
        f"  salvage   what was written after the point: `zsnapdb clone create {plan.instance} --from {plan.restore_id}`"
    )


def loss_lines(outage: Outage) -> list[str]:
    """Return lines about the transactions that the server loses, and about the places that keep them."""
    step = outage.plan.promotion
    kept = [part.old for part in step.parts if part.old is not None] if step is not None else []
    return [
        *_left_out_lines(outage.left_out),
        _archived_line(outage.plan.instance, outage.archived),
        *([f"  kept      the replaced datasets {', '.join(kept)}"] if kept else []),
        _salvage_line(outage.plan),
    ]


def question(outage: Outage) -> str:
    """Return the question that the operator must answer before the server is stopped."""
    plan = outage.plan
    following = plan.point.following
    lost = (
        "All transactions of the server that the restored state does not contain will be left out, also those of"
        " another history."
    )
    if following is not None:
        lost += f" In the history of the point, the first one is {following.describe()}."
    rebuilt = [f"Replicas: {one.text}; {one.hint}.\n" for one in judge(outage.readers, will_be_rebuilt=True)]
    return (
        f"The restored server is ready and was checked. {lost}\n"
        + "".join(f"{line}\n" for line in loss_lines(outage))
        + f"The outage: `{shlex.join(outage.service.stop_words)}`, the exchange of the datasets, and a start. The"
        f" prepared server started and stopped in {format_duration(outage.start_seconds)}.\n"
        f"{''.join(rebuilt)}Stop the server of {plan.instance} now?"
    )


class RewindPlanView(View, kind="rewind-plan", document=documents.RewindPlanDocument):
    """The plan of a rewind, and the findings of its preflight."""

    planned: RewindPlan
    findings: Sequence[FitnessFinding] = ()
    left_out: LeftOut | None = None

    def text(self) -> str:
        planned = self.planned
        lines = [
            RestorePlanView(planned.restore, self.findings).text(),
            *(_left_out_lines(self.left_out) if self.left_out is not None else []),
            "  archived  the last binlogs, before the handover",
            f"  volumes   from {_origin(planned.restore)}",
            f"  stop      {shlex.join(planned.service.stop_words)} (before the handover, after a question)",
            f"  start     {shlex.join(planned.service.start_words)} (after the handover)",
        ]
        if planned.server_id_file is not None:
            lines.append(f"  server_id {planned.handover.server_id}, in {planned.server_id_file}")
        return "\n".join(lines)


class RewindView(View, kind="rewind", document=documents.RewindDocument, read_from="result"):
    """A rewound server, or a prepared server that has not replaced the old server yet."""

    result: RewindResult

    def text(self) -> str:
        result, plan = self.result, self.result.plan
        if result.outage is None:
            return (
                f"the restored server of {plan.instance} is prepared in {plan.layout.top}; the running server was not"
                f" touched\ncontinue with `zsnapdb rewind {plan.instance} --resume`, or give it up with"
                f" `zsnapdb restore {plan.instance} --abandon`"
            )
        if result.finished_before is not None:
            return (
                f"the rewind of {plan.instance} to {plan.requested} was finished at"
                f" {result.finished_before:%Y-%m-%d %H:%M:%S} UTC, after {format_duration(result.outage)} of outage;"
                " nothing was done now"
            )
        lines = [
            f"the server of {plan.instance} runs again, at {plan.requested}",
            *point_lines(plan.requested, plan.point)[1:],
            f"  volumes   from {_origin(plan)}",
            f"  took      {format_duration(result.prepared)} to prepare, {format_duration(result.outage)} of outage",
        ]
        if result.handover.server_id is not None:
            lines.append(f"  server_id {result.handover.server_id}")
        lines += [f"  kept      {part.place} as {part.old}" for part in result.handover.parts if part.old is not None]
        if result.left_out is not None and result.archived is not None:
            lines += [*_left_out_lines(result.left_out), _archived_line(plan.instance, result.archived)]
        lines.append(_salvage_line(plan))
        if result.backup is not None:
            lines.append(f"  backup    {result.backup.manifest.backup_id} of the new history is stored")
        elif result.backup_error is not None:
            lines.append(f"  backup    NONE of the new history: {result.backup_error.message}")
        else:
            lines.append("  backup    none of the new history yet: run `zsnapdb backup`")
        return "\n".join(lines)
