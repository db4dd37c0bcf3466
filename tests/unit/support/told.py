"""Output of zsnapdb commands for an instance `main` whose objectives are not met, with untrusted text in it."""

from __future__ import annotations

from tests.unit.support.serve_host import ServeHost

NEWEST, OLDER = "20260102T000000Z-0002", "20260101T000000Z-0001"


def tells(host: ServeHost, said: str = "said") -> None:
    """Set an output for each read-only command. `said` is in every place with untrusted text."""
    broken = {
        "objective": "backup_age",
        "subject": said,
        "verdict": "broken",
        "reason": f"the newest backup is old {said}",
        "hint": "",
        "since": "2026-01-02T00:30:00Z",
        "seconds": 7200.0,
        "limit_seconds": 3600.0,
    }
    warning = {**broken, "objective": "drill_age", "verdict": "warning", "since": None, "reason": "soon"}
    status = {
        "kind": "status",
        "instance": "main",
        "at": "2026-01-02T01:00:00+00:00",
        "recoverable": [
            {"from": "2026-01-01T00:00:00.000000Z", "to": "2026-01-01T10:00:00.000000Z", "backups": [OLDER]},
            {"from": "2026-01-01T10:30:00.000000Z", "to": "2026-01-02T00:59:00.000000Z", "backups": [NEWEST, said]},
        ],
        "gaps": [
            {"from": "2026-01-01T10:00:00.000000Z", "to": "2026-01-01T10:30:00.000000Z", "reason": f"lost {said}"}
        ],
        "verdict": "broken",
        "objectives": [broken, warning],
    }
    lost = {"instance": "masked", "status": None, "error": {"code": said, "message": "", "hint": ""}}
    calm = {"instance": "secret", "status": {"instance": "secret", "verdict": "met", "objectives": []}, "error": None}
    states = [{"instance": "main", "status": status, "error": None}, lost, calm]
    host.prints("status", {**status, "instances": states}, 2)
    host.prints("list", {"kind": "local-sets", "sets": [{"backup_id": NEWEST, "state": said}]})
    host.prints(
        "drills", {"kind": "drills", "drills": [_drill(1, "passed", 4.5, said), _drill(2, "failed", 9.0, said)]}
    )
    host.prints("logs", {"kind": "clone-logs", "clone": "mine", "lines": ["[Note] ready", said]})
    record = {
        "number": 7,
        "job": said,
        "command": said,
        "about": said,
        "who": {"account": "root", "subject": said, "issuer": said, "host": said},
        "finished": "2026-01-02T00:00:00Z",
        "exit_code": 0,
        "changes": [{}, {}],
    }
    doubtful = {"number": 8, "problem": said}
    page = {"instance": "main", "records": [record], "not_believed": [doubtful], "next": 8}
    host.prints("report", {"kind": "report-records", **page})


def _drill(day: int, outcome: str, seconds: float, said: str) -> dict[str, object]:
    return {
        "drill_id": f"2026010{day}T000000Z-000{day}",
        "backup_id": OLDER,
        "requested": said,
        "started": f"2026-01-0{day}T00:00:00Z",
        "finished": f"2026-01-0{day}T00:01:00Z",
        "outcome": outcome,
        "seconds": seconds + 1,
        "steps": [
            {"kind": "receive", "what": "secret place", "seconds": seconds},
            {"kind": "receive", "what": "secret place", "seconds": 1.0},
            {"kind": said, "what": "secret place", "seconds": 0.5},
        ],
    }
