"""Sets of clones as text and as JSON."""

from __future__ import annotations

from zsnapdb.jobs.clone.topology import CloneSet, SetPlan
from zsnapdb.report.clone import clones
from zsnapdb.report.document import document
from zsnapdb.report.units import table


def plan(found: SetPlan) -> str:
    """What making a set would do."""
    parts = "the first as the source of the others" if found.topology == "replication" else "independent of one another"
    return (
        f"a set of {len(found.names)} clones, {parts}: {', '.join(found.names)}; each like the"
        f" first:\n{clones.plan(found.first)}"
    )


def plan_json(found: SetPlan) -> str:
    """What making a set would do."""
    first = found.first
    return document(
        "clone-set-plan",
        names=list(found.names),
        topology=found.topology,
        instance=first.instance,
        backup_id=first.set_id or None,
    )


def clone_set(result: CloneSet) -> str:
    """A new set."""
    first = result.members[0].clone.info
    lines = [
        (
            f"set {result.name}: {len(result.members)} clones of {first.instance}, as of {first.backup_id},"
            f" {result.topology}"
        )
    ]
    if result.arrival_seconds is not None:
        lines.append(f"  a row of the source was at every replica after {result.arrival_seconds:.2f} s")
    rows = [
        (m.clone.info.name, m.part, str(m.clone.info.port), f"--defaults-file={m.clone.process.folder}/client.cnf")
        for m in result.members
    ]
    return "\n".join([*lines, table(("CLONE", "PART", "PORT", "CLIENT"), rows)])


def clone_set_json(result: CloneSet) -> str:
    """A new set. A document with passwords in it."""
    members = [
        {
            "name": m.clone.info.name,
            "part": m.part,
            "port": m.clone.info.port,
            "user": m.clone.user,
            "password": m.clone.password.get_secret_value(),
            "mount": str(m.clone.info.mount),
            "backup_id": m.clone.info.backup_id,
        }
        for m in result.members
    ]
    return document(
        "clone-set", name=result.name, topology=result.topology, members=members, arrival_seconds=result.arrival_seconds
    )
