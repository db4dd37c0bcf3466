"""Drills as text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from zsnapdb.jobs.trial.drill import DrillPlan, DrillResult
from zsnapdb.report.document import VERSION
from zsnapdb.report.units import size, table
from zsnapdb.repository.drills import Evidence, Outcome


def plan(planned: DrillPlan) -> str:
    """What a drill would do."""
    part = "all" if planned.budget is None else f"about {size(planned.budget)}"
    what = planned.restore
    lines = [
        (
            f"drill {what.instance} at {planned.wanted} (backup {what.backup_id}) in {planned.place.container}, seed"
            f" {planned.seed}"
        )
    ]
    steps = [step.describe() for step in what.steps]
    steps += [
        f"check the sums of {part} of its pages with {planned.innochecksum}",
        "start it again without network, replication and events",
        f"CHECK TABLE of {part} of its tables",
        f"ask {planned.probes} configured probe(s)",
        f"write the evidence to the repository, end the server, destroy {planned.place.container}",
    ]
    return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


def plan_json(planned: DrillPlan) -> str:
    """What a drill would do."""
    return json.dumps(
        {
            "version": VERSION,
            "kind": "drill-plan",
            "instance": planned.restore.instance,
            "backup_id": planned.restore.backup_id,
            "gtids": planned.restore.point.gtids,
            "steps": [step.name for step in planned.restore.steps],
            "dataset": planned.place.container,
            "seed": planned.seed,
            "sample_bytes": planned.budget,
            "probes": planned.probes,
            "innochecksum": str(planned.innochecksum),
        }
    )


def evidence(found: Evidence) -> str:
    """One drill: its verdict, its steps, what was checked; every check that was not passed by itself."""
    lines = [
        f"drill {found.drill_id} of backup {found.backup_id} of {found.instance}: {found.outcome.value}",
        (
            f"  made      {found.started:%Y-%m-%d %H:%M:%S} UTC on {found.host} by zsnapdb {found.tool_version},"
            f" {found.seconds:.1f} s, seed {found.seed}"
        ),
        f"  server    {found.server_version}",
    ]
    if found.position:
        lines.append(f"  position  {found.position}")
    lines += [
        f"  step      {step.seconds:8.1f} s  {step.kind}: {step.what}" + (f", {size(step.size)}" if step.size else "")
        for step in found.steps
    ]
    good = Counter(check.kind for check in found.checks if check.outcome is Outcome.PASSED)
    lines += [f"  passed    {count:5d}  {kind}" for kind, count in sorted(good.items())]
    lines += [
        f"  {check.outcome.value:<9} {check.kind} {check.what}: {check.found}"
        for check in found.checks
        if check.outcome is not Outcome.PASSED
    ]
    lines += [f"  note      {note}" for note in found.notes]
    return "\n".join(lines)


def _document(found: Evidence) -> dict[str, object]:
    return {**found.model_dump(mode="json"), "outcome": found.outcome.value, "seconds": found.seconds}


def evidence_json(found: Evidence) -> str:
    """One drill."""
    return json.dumps({"version": VERSION, "kind": "drill", "drill": _document(found)})


def result(done: DrillResult) -> str:
    """A drill that was just made."""
    return f"{evidence(done.evidence)}\n  evidence  {done.key}"


def listing(found: Sequence[Evidence]) -> str:
    """Drills, oldest first."""
    rows = [(e.drill_id, e.backup_id, e.outcome.value, f"{e.seconds:.0f} s", e.host) for e in found]
    return table(("DRILL", "BACKUP", "OUTCOME", "TOOK", "HOST"), rows)


def listing_json(found: Sequence[Evidence]) -> str:
    """Drills, oldest first."""
    return json.dumps({"version": VERSION, "kind": "drills", "drills": [_document(e) for e in found]})
