"""Rescues as text and JSON."""

from __future__ import annotations

import json
from typing import Any

from zsnapdb.jobs.trial.rescue import RescuePlan, RescueResult
from zsnapdb.planning.trial.rescue import DumpFile
from zsnapdb.report.document import VERSION
from zsnapdb.report.restore.result import point, point_fields


def _where(planned: RescuePlan) -> str:
    where = planned.request.destination.where
    return (
        where.path
        if isinstance(where, DumpFile)
        else f"{planned.name} on {where.user}@{where.socket or f'{where.host}:{where.port}'}"
    )


def plan(planned: RescuePlan) -> str:
    """What a rescue would do."""
    wanted, file = planned.request.wanted, isinstance(planned.request.destination.where, DumpFile)
    steps = [
        f"{planned.way}, {planned.restore.backup_id}, in {planned.place.container}",
        f"start a server on it without network, replication and events; it must stand at {planned.restore.point.gtids}",
        (
            f"dump {wanted} with {planned.tools.dump} to {_where(planned)}"
            if file
            else f"put {wanted} into {_where(planned)}, and count its rows"
        ),
        f"end the server, destroy {planned.place.container}",
    ]
    if planned.restore.replays:
        steps.insert(1, "replay the archived binlogs behind it up to the point")
    lines = [f"rescue {wanted} of {_as_of(planned)}", *point(planned.restore.asked, planned.restore.point)]
    return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


def _as_of(planned: RescuePlan) -> str:
    found = planned.restore
    return (
        f"{found.instance} as of {found.asked}, from backup {found.backup_id}"
        if found.replays
        else f"{found.instance} as of {found.backup_id}"
    )


def _facts(planned: RescuePlan) -> dict[str, Any]:
    return {
        "instance": planned.restore.instance,
        "backup_id": planned.restore.backup_id,
        "wanted": str(planned.request.wanted),
        "point": point_fields(planned.restore.point),
        "source": "clone" if planned.local is not None else "restore",
        "into": _where(planned),
    }


def plan_json(planned: RescuePlan) -> str:
    """What a rescue would do."""
    return json.dumps({"version": VERSION, "kind": "rescue-plan", **_facts(planned)})


def result(done: RescueResult) -> str:
    """A rescue that was made."""
    found = done.delivered
    return "\n".join(
        [
            f"{done.plan.request.wanted} of {_as_of(done.plan)} is in {found.where}",
            f"  from      {done.plan.way}",
            f"  by        {found.choice.transport.value}: {found.choice.reason}",
            *(f"  rows      {count} in {table}" for table, count in found.rows),
            *(f"  left out  {what}" for what in found.left_out),
            (
                f"  took      {done.server_seconds:.1f} s until the server answered, {done.delivery_seconds:.1f} s to"
                " deliver"
            ),
        ]
    )


def result_json(done: RescueResult) -> str:
    """A rescue that was made."""
    found = done.delivered
    return json.dumps(
        {
            "version": VERSION,
            "kind": "rescue",
            **_facts(done.plan),
            "delivered": found.where,
            "transport": found.choice.transport.value,
            "reason": found.choice.reason,
            "rows": dict(found.rows),
            "left_out": list(found.left_out),
            "server_seconds": done.server_seconds,
            "delivery_seconds": done.delivery_seconds,
        }
    )
