"""Clones as text for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.clone.create import ClonePlan, Created
from zsnapdb.report.json import document
from zsnapdb.report.masking import masking, masking_fields
from zsnapdb.report.units import size, table


def created(result: Created) -> str:
    """A new clone."""
    return "\n".join(
        [
            f"clone {result.info.name} of {result.info.instance} runs on port {result.info.port}",
            f"  data      as of {result.info.backup_id}: {result.position.describe()}",
            f"  dataset   {result.info.top}, mounted at {result.info.mount}",
            f"  client    --defaults-file={result.info.mount}/.zsnapdb/client.cnf",
            f"  dsn       {result.dsn}",
            f"  took      {result.clone_seconds:.1f} s to clone, {result.start_seconds:.1f} s to start",
            *(masking(result.masking) if result.masking is not None else ()),
        ]
    )


def plan(plan: ClonePlan) -> str:
    """What making a clone would do."""
    lines = [f"clone {plan.name} of the snapshot set {plan.chosen.backup_id}, on port {plan.port}"]
    lines += [f"  zfs clone {plan.chosen.snapshots[role].full_name} to {dataset}" for role, dataset in sorted(plan.layout.datasets.items())]
    lines += ["  mask it, unreachable meanwhile"] if plan.masked else []
    return "\n".join([*lines, f"  start {plan.facts.describe()} with a new identity at {plan.copy.root}, and check it"])


def destroy_plan(info: CloneInfo) -> str:
    """What destroying a clone would do."""
    lines = [f"end its server, process {info.pid}"] if info.pid else []
    return "\n".join([*lines, *(f"zfs destroy {dataset}" for dataset in reversed(info.datasets))])


def listing(found: list[CloneInfo]) -> str:
    """All clones."""
    rows = [(c.name, c.instance, c.backup_id, c.created, str(c.port), f"running ({c.pid})" if c.pid else "stopped", size(c.own_bytes)) for c in found]
    return table(("CLONE", "INSTANCE", "BACKUP", "CREATED", "PORT", "SERVER", "OWN BYTES"), rows)


def destroyed(info: CloneInfo) -> str:
    """A clone that is gone."""
    return f"clone {info.name} is gone: {', '.join(info.datasets)}"


def _clone(c: CloneInfo) -> dict[str, Any]:
    return {
        "name": c.name,
        "instance": c.instance,
        "backup_id": c.backup_id,
        "port": c.port,
        "created": c.created,
        "position": c.position,
        "datasets": list(c.datasets),
        "mount": str(c.mount),
        "own_bytes": c.own_bytes,
        "pid": c.pid,
    }


def created_json(result: Created) -> str:
    """A new clone. The one document with a password in it."""
    return document(
        "clone",
        clone=_clone(result.info),
        user=result.user,
        password=result.password.get_secret_value(),
        clone_seconds=result.clone_seconds,
        start_seconds=result.start_seconds,
        masking=masking_fields(result.masking) if result.masking is not None else None,
    )


def plan_json(plan: ClonePlan) -> str:
    """What making a clone would do."""
    sources = {role: snapshot.full_name for role, snapshot in plan.chosen.snapshots.items()}
    layout = dict(plan.layout.datasets)
    return document("clone-plan", name=plan.name, port=plan.port, snapshots=sources, datasets=layout, mount=str(plan.copy.root), masked=plan.masked)


def destroy_plan_json(info: CloneInfo) -> str:
    """What destroying a clone would do."""
    return document("clone-destroy-plan", clone=_clone(info))


def listing_json(found: list[CloneInfo]) -> str:
    """All clones."""
    return document("clones", clones=[_clone(c) for c in found])


def destroyed_json(info: CloneInfo) -> str:
    """A clone that is gone."""
    return document("clone-destroyed", clone=_clone(info))
