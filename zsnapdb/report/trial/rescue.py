"""Rescues."""

from __future__ import annotations

import shlex

from zsnapdb.documents.trial import RescueDocument, RescueFields
from zsnapdb.jobs.trial.rescue import RescuePlan, RescueResult
from zsnapdb.planning.trial.rescue import DumpFile
from zsnapdb.report.restore.result import point_lines
from zsnapdb.report.view import View


class RescuePlanView(View, kind="rescue-plan", document=RescueFields):
    """What a rescue would do."""

    plan: RescuePlan

    def text(self) -> str:
        plan = self.plan
        subject, file = plan.request.original, isinstance(plan.request.destination.where, DumpFile)
        steps = [
            f"{plan.way}, {plan.restore.backup_id}, in {plan.place.container}",
            (
                "start a server on it without network, replication and events; its GTIDs must be exactly"
                f" {plan.restore.point.gtids}"
            ),
            (
                f"dump {subject} with {plan.tools.dump} to {plan.into}"
                if file
                else f"put {subject} into {plan.into}, and count its rows"
            ),
            f"stop the server, destroy {plan.place.container}",
        ]
        if plan.restore.replays:
            steps.insert(1, "replay the archived binlogs after the backup, up to the point")
        lines = [f"rescue {subject} of {_as_of(plan)}", *point_lines(plan.restore.requested, plan.restore.point)]
        return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


def _as_of(planned: RescuePlan) -> str:
    restore = planned.restore
    return (
        f"{restore.instance} as of {restore.requested}, from backup {restore.backup_id}"
        if restore.replays
        else f"{restore.instance} as of {restore.backup_id}"
    )


class RescueView(View, kind="rescue", document=RescueDocument, read_from="result"):
    """A finished rescue."""

    result: RescueResult

    def text(self) -> str:
        result = self.result
        delivery = result.delivered
        return "\n".join(
            [
                f"{result.plan.request.original} of {_as_of(result.plan)} is in {delivery.where}",
                f"  from      {result.plan.way}",
                f"  by        {delivery.choice.transport.value}: {delivery.choice.reason}",
                *(f"  rows      {count} in {table}" for table, count in delivery.rows),
                *(f"  left out  {what}" for what in delivery.left_out),
                (
                    f"  took      {result.server_seconds:.1f} s until the server answered,"
                    f" {result.delivery_seconds:.1f} s to deliver"
                ),
                *self._loading(),
            ]
        )

    def _loading(self) -> list[str]:
        """Say how the rows of a table come into a server beside the table that is there."""
        plan = self.result.plan
        where = plan.request.destination.where
        if not isinstance(where, DumpFile) or plan.request.original.table is None:
            return []
        client = plan.tools.client
        return [
            "  to load   the file makes the table under its old name: load it into a schema of its own, such as",
            f"            {client} -e 'CREATE DATABASE rescued'; {client} rescued < {shlex.quote(where.path)}",
        ]
