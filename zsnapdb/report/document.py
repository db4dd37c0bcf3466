"""Results as JSON.

Every document has `version` (of this form, now 1) and `kind`; sizes in bytes, times in seconds or UTC.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from zsnapdb.config import Settings
from zsnapdb.errors import ZsnapdbError
from zsnapdb.jobs.backup.run import BackupPlan, BackupResult
from zsnapdb.jobs.doctor import Diagnosis
from zsnapdb.jobs.repository.inventory import Detail, Inventory
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.backup.lock_strategy import LockChoice
from zsnapdb.repository.catalogue import Summary
from zsnapdb.repository.manifest import Manifest
from zsnapdb.repository.unfinished import Unfinished

VERSION = 1


def document(kind: str, **fields: Any) -> str:
    """Return a document of that kind: one line of JSON."""
    return json.dumps({"version": VERSION, "kind": kind, **fields})


def _manifest(m: Manifest | Summary) -> dict[str, Any]:
    return {
        "backup_id": m.backup_id,
        "instance": m.instance,
        "full": m.is_full,
        "created": m.created.isoformat(),
        "position": m.position.model_dump(),
        "lock": m.lock.model_dump(),
        "channels": [channel.model_dump() for channel in m.channels],
        "server": {"flavour": m.server.flavour.value, "version": m.server.version},
        "plain_bytes": m.plain_size,
        "stored_bytes": m.stored_size,
        "volumes": [
            {
                "role": v.role,
                "dataset": v.dataset,
                "guid": v.guid,
                "from_guid": v.from_guid,
                "plain_bytes": v.plain_size,
                "stored_bytes": v.stored_size,
                "chunks": v.chunk_count,
            }
            for v in m.volumes
        ],
    }


def backup(result: BackupResult) -> str:
    """A finished backup."""
    return document(
        "backup",
        backup=_manifest(result.manifest),
        snapshot_seconds=result.snapshot_seconds,
        send_seconds=result.send_seconds,
        warnings=list(result.warnings),
        continued=[m.backup_id for m in result.continued],
    )


def backup_plan(plan: BackupPlan) -> str:
    """What a backup would do."""
    base = plan.base.base.backup_id if plan.base.base else None
    return document(
        "backup-plan",
        server=plan.observed.facts.describe(),
        findings=_findings(plan.observed.findings),
        volumes=dict(plan.observed.volumes),
        paths=[
            {"path": p.path, "setting": p.what, "volume": plan.observed.placement.volume_of[p.path]}
            for p in plan.observed.paths
        ],
        block_sizes={str(size): count for size, count in sorted(plan.observed.blocks.counts.items())},
        page_size=plan.observed.blocks.page_size,
        position=plan.observed.position.describe(),
        lock=_choice(plan.observed.choice),
        deadline_seconds=plan.deadline,
        hooks=list(plan.hooks),
        interrupted=[
            {
                "backup_id": item.backup_id,
                "fate": item.judgement.fate.value,
                "why": item.judgement.because.value,
                "text": item.judgement.text,
            }
            for item in plan.interrupted
        ],
        base=base,
        reasons=[{"why": reason.why.value, "text": reason.text} for reason in plan.base.reasons],
        warnings=list(plan.observed.warnings),
    )


def _unfinished(u: Unfinished) -> dict[str, Any]:
    return {
        "backup_id": u.backup_id,
        "host": u.host,
        "started": u.started,
        "snapshots": {role: asdict(mark) for role, mark in u.snapshots.items()},
    }


def inventory(found: Inventory) -> str:
    """The backups of an instance."""
    return document(
        "backups",
        backups=[{**_manifest(e.manifest), "local": e.is_local} for e in found.entries],
        damaged=[_error(e) for e in found.damaged],
        unfinished=[_unfinished(u) for u in found.unfinished],
    )


def detail(found: Detail) -> str:
    """One backup."""
    return document(
        "backup-detail",
        backup={**_manifest(found.entry.manifest), "local": found.entry.is_local},
        chain=[m.backup_id for m in found.chain],
    )


def _choice(choice: LockChoice) -> dict[str, Any]:
    return {
        "strategy": choice.name,
        "reason": choice.reason,
        "fallback": _choice(choice.fallback) if choice.fallback else None,
    }


def _findings(found: Sequence[FitnessFinding]) -> list[dict[str, str]]:
    return [{"severity": f.severity.value, "what": f.what, "detail": f.detail, "hint": f.hint} for f in found]


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """What the doctor found."""
    rows = [{"instance": d.instance, "worst": d.worst.value, "findings": _findings(d.findings)} for d in found]
    return document("doctor", instances=rows)


def configuration(settings: Settings) -> str:
    """What a configuration file names."""
    return document("configuration", instances=sorted(settings.instance), repositories=sorted(settings.repository))


def _error(error: ZsnapdbError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def error(error: ZsnapdbError) -> str:
    """A failure."""
    return document("error", error=_error(error), exit_code=error.exit_code)
