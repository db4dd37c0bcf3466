"""Documents that are read off results: their names and forms are what programs rely on."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.planning.restore.test_runbook import BACKUP, PLAN
from tests.unit.support.drilled import evidence
from tests.unit.support.manifests import manifest, of_kind
from zsnapdb.base import run_context
from zsnapdb.base.errors import DamagedError
from zsnapdb.config.notifications import NotificationEvent
from zsnapdb.documents.backup import ManifestFields
from zsnapdb.jobs.repository.adopt import ForgetResult
from zsnapdb.jobs.repository.protection_status import InstanceStatus
from zsnapdb.jobs.restore.rewind import RewindResult
from zsnapdb.planning.health.notification_events import FailedDelivery
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.report.repository.init import KeysPlanView
from zsnapdb.report.repository.list import ForgetView, PinView
from zsnapdb.report.repository.protection import AllStatusView
from zsnapdb.report.restore import AbandonedView, RestorePlanView, RewindView
from zsnapdb.report.trial import DrillsView
from zsnapdb.report.view import View
from zsnapdb.repository.backup_marks import Pin
from zsnapdb.repository.drills import Outcome

AT = datetime(2026, 11, 21, 10, 11, 12, tzinfo=UTC)
REWOUND: RestorePlan = replace(PLAN, steps=PLAN.steps[:-1])
"""A plan whose last step puts the restored server in place of the old one."""


@pytest.mark.parametrize(
    ("view", "document"),
    [
        (ForgetView(ForgetResult("main", (BACKUP,)), True), {"instance": "main", "backups": [BACKUP], "planned": True}),
        (PinView(Pin(BACKUP, "audit", "today")), {"pin": {"backup_id": BACKUP, "reason": "audit", "since": "today"}}),
        (KeysPlanView(Path("/k"), None), {"files": [{"what": "age identity", "file": "/k"}]}),
        (
            AbandonedView(PLAN, "it runs"),
            {"top": "tank/zsnapdb/restored/main", "restore_id": BACKUP, "server": "it runs"},
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, View) else "",
)
def test_a_document_has_the_fields_of_its_result(view: View, document: dict[str, object]) -> None:
    assert json.dumps(view.fields()) == json.dumps(document)


def test_the_plan_of_a_restore_says_from_where_each_binlog_comes() -> None:
    shown: Any = RestorePlanView(PLAN).fields()
    assert list(shown)[:4] == ["target", "chain", "findings", "restore_id"]
    assert shown["binlogs"] == [{"incarnation": "a", "file": "binlog.000003", "from": "archive"}]
    assert shown["steps"][1] == {"name": "make-top", "kind": "make-top", "what": PLAN.steps[1].describe()}
    assert (shown["point"]["last"]["gtid"], shown["point"]["last"]["committed"]) == (
        "u:20",
        "2026-11-21T10:11:12+00:00",
    )


def test_a_rewind_names_the_backup_that_it_made_or_why_there_is_none() -> None:
    result = RewindResult(REWOUND, 2.5, 1.0, AT, backup_error=DamagedError("full"))
    shown: Any = RewindView(result).fields()
    assert (shown["backup"], shown["backup_error"], shown["replaced"]) == (None, "full", {"data": "tank/d-old"})
    assert (shown["volumes_from"], shown["binlogs_from"]) == ("host", {"host": 0, "archive": 1})


def test_a_source_that_is_no_machine_has_no_fields_of_machines() -> None:
    server, other = (ManifestFields.of_result(one).json_fields() for one in (manifest(), of_kind("files")))
    assert list(server) == list(other)
    assert "grade" not in other
    assert (other["source"], other["position"], other["channels"], other["server"]) == ("files", None, [], None)
    assert server["position"] == manifest().source.model_dump(mode="json")["position"]


def test_the_status_of_several_says_errors_for_their_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    delivery = FailedDelivery(at=AT, event=NotificationEvent.BROKEN, instance="main", subject="", error="refused")
    view = AllStatusView([InstanceStatus("main", "here", None, DamagedError("lost"))], [("desk", delivery)])
    monkeypatch.setenv(run_context.AUDIENCE_VARIABLE, "ann")
    shown: Any = view.fields()
    (state,) = shown["instances"]
    assert (state["status"], state["error"]["audience"]) == (None, "ann")
    assert shown["failed_notifications"] == [
        {"target": "desk", "at": "2026-11-21T10:11:12Z", "event": "broken", "instance": "main", "subject": ""}
        | {"error": "refused"}
    ]


def test_the_evidence_of_a_drill_has_its_verdict() -> None:
    shown: Any = DrillsView([evidence(Outcome.DAMAGED)]).fields()
    (drill,) = shown["drills"]
    assert (drill["outcome"], drill["seconds"], drill["checks"][0]["outcome"]) == ("damaged", 0.0, "damaged")
