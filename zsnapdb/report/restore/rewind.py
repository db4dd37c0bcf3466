"""Rewinds and their plans."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from zsnapdb.base.quantities import format_duration
from zsnapdb.documents.restore import RewindDocument, RewindPlanDocument
from zsnapdb.jobs.restore.rewind import Outage, RewindPlan, RewindResult
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.readers import SeenReaders, judge
from zsnapdb.report.restore.result import RestorePlanView, point_lines
from zsnapdb.report.view import View


def _origin(plan: RestorePlan) -> str:
    return "the snapshots on this host" if plan.clones else "the repository"


def question(outage: Outage) -> str:
    """Return what a person is asked before the server is stopped."""
    plan = outage.plan
    following = plan.point.following
    lost = (
        f"Every transaction from {following.describe()} on will be left out; the replaced datasets keep them."
        if following is not None
        else "No transaction that is known will be left out."
    )
    return (
        f"The restored server is ready and was checked. {lost}\n"
        f"The outage: `{shlex.join(outage.service.stop_words)}`, the exchange of the datasets, and a start. The"
        f" prepared server started and stopped in {format_duration(outage.start_seconds)}.\n"
        f"{_rebuilt(outage.readers)}Stop the server of {plan.instance} now?"
    )


def _rebuilt(readers: SeenReaders | None) -> str:
    found = judge(readers, will_be_rebuilt=True)
    return "".join(f"Replicas: {finding.text}; {finding.hint}.\n" for finding in found)


class RewindPlanView(View, kind="rewind-plan", document=RewindPlanDocument):
    """What a rewind would do, and the findings of its preflight."""

    planned: RewindPlan
    findings: Sequence[FitnessFinding] = ()

    def text(self) -> str:
        planned = self.planned
        lines = [
            RestorePlanView(planned.restore, self.findings).text(),
            f"  volumes   from {_origin(planned.restore)}",
            f"  stop      {shlex.join(planned.service.stop_words)} (before the handover, after a question)",
            f"  start     {shlex.join(planned.service.start_words)} (after the handover)",
        ]
        if planned.server_id_file is not None:
            lines.append(f"  server_id {planned.handover.server_id}, in {planned.server_id_file}")
        return "\n".join(lines)


class RewindView(View, kind="rewind", document=RewindDocument, read_from="result"):
    """A rewound server, or one that is prepared and waits."""

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
        salvage = f"zsnapdb clone create {plan.instance} --from {plan.restore_id}"
        lines.append(f"  salvage   what was written after the point: `{salvage}`")
        if result.backup is not None:
            lines.append(f"  backup    {result.backup.manifest.backup_id} of the new history is stored")
        elif result.backup_error is not None:
            lines.append(f"  backup    NONE of the new history: {result.backup_error.message}")
        else:
            lines.append("  backup    none of the new history yet: run `zsnapdb backup`")
        return "\n".join(lines)
