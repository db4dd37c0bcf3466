"""The JSON schemas of what each command prints under `--json`, made of the documents that its views declare.

A field may be added to a document at any time, so the schemas allow others. A removed or changed field is a new
`version` of the document format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from zsnapdb.base.errors import UsageError
from zsnapdb.documents.comparison import AnswerDocument, DifferenceDocument
from zsnapdb.report import agent, backup, binlog, doctor, setup, tokens
from zsnapdb.report.clone import branches, change, create, migration, pool
from zsnapdb.report.clone import list as clones
from zsnapdb.report.document import VERSION, ErrorDocument
from zsnapdb.report.fleet import status as fleet
from zsnapdb.report.repository import evidence, init, prune, status, verify
from zsnapdb.report.repository import list as backups
from zsnapdb.report.restore import result, runbook
from zsnapdb.report.trial import drill as trial
from zsnapdb.report.view import View
from zsnapdb.report.vm import machines

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        """Leave out the titles of fields: they are their names again."""
        return False


@dataclass(frozen=True)
class DocumentType:
    """A kind of document, and the model of its fields."""

    kind: str
    fields: type

    @classmethod
    def of(cls, view: type[View]) -> DocumentType:
        """Return the type of the documents of a view."""
        return cls(view.kind, view.document_class)

    def schema(self) -> dict[str, Any]:
        """Return the schema of one document: its fields, and the frame that every document has."""
        schema = TypeAdapter(self.fields).json_schema(
            mode="serialization", by_alias=True, schema_generator=_WithoutTitles
        )
        frame = {"version": {"const": VERSION}, "kind": {"const": self.kind}}
        return {
            **schema,
            "properties": {**frame, **schema["properties"]},
            "required": [*frame, *schema.get("required", ())],
        }


_ERROR = DocumentType("error", ErrorDocument)


def _types(*views: type[View]) -> tuple[DocumentType, ...]:
    return tuple(DocumentType.of(view) for view in views)


_CHANGED = _types(change.ChangedView, change.IntentionView)
_MACHINE = _types(machines.MachineChangedView, machines.MachineStepView)

DOCUMENTS: Mapping[str, tuple[DocumentType, ...]] = {
    "acknowledge-removed": _types(backups.ForgetView),
    "adopt": _types(backups.AdoptView),
    "agent pause": _types(agent.PauseView),
    "agent run": _types(agent.AgentRunView),
    "agent status": _types(agent.AgentView),
    "backup": _types(backup.BackupView, backup.BackupPlanView),
    "binlog archive": _types(binlog.ArchivingView),
    "binlog find": _types(binlog.SearchView, binlog.FollowedView),
    "binlog purge": _types(binlog.PurgeView, binlog.PurgePlanView),
    "binlog status": _types(binlog.BinlogArchiveView),
    "clone addresses": _types(clones.AddressesView),
    "clone branch create": _types(branches.BranchesView, change.IntentionView),
    "clone branch delete": _types(branches.BranchesView, change.IntentionView),
    "clone branch diff": _types(branches.BranchDifferenceView),
    "clone branch list": _types(branches.BranchesView),
    "clone branch log": _types(branches.BranchLogView),
    "clone branch switch": _types(branches.SwitchedView, change.IntentionView),
    "clone commit": _types(change.CommittedView, change.IntentionView),
    "clone connect": _types(clones.LoginView),
    "clone create": _types(
        create.CreatedView,
        create.ClonePlanView,
        create.HandOutPlanView,
        create.CloneSetView,
        create.CloneSetPlanView,
    ),
    "clone destroy": _types(change.DestroyedView, change.DestroyPlanView),
    "clone detach": _types(change.DetachedView, change.DetachPlanView),
    "clone extend": _CHANGED,
    "clone hold": _types(change.ResetView, change.ChangedView),
    "clone list": _types(clones.ClonesView),
    "clone logs": _types(clones.ServerLogView),
    "clone prepare": _types(create.PreparedView, change.IntentionView, create.RemovedFormsView),
    "clone pool": _types(pool.FilledPoolView, pool.PoolPlanView),
    "clone protect": _CHANGED,
    "clone beat": _CHANGED,
    "clone rename": _CHANGED,
    "clone reset": _types(change.ResetView, change.ResetPlanView),
    "clone show": _types(clones.CloneDetailView),
    "clone start": _CHANGED,
    "clone stop": _CHANGED,
    "clone upgrade-test": _types(migration.RehearsalView),
    "migration-check": _types(migration.MigrationView),
    "config check": _types(setup.ConfigurationView),
    "consolidate": _types(trial.ConsolidateView, trial.ConsolidatePlanView),
    "copy": _types(prune.CopyView, prune.CopyPlanView),
    "diff": (DocumentType("difference", DifferenceDocument),),
    "doctor": _types(doctor.DoctorView, doctor.LoadView),
    "drill": _types(trial.DrillView, trial.DrillPlanView, trial.MachineDrillPlanView),
    "drills": _types(trial.DrillsView, trial.EvidenceView),
    "example": _types(setup.ExampleView, setup.ExamplesView),
    "fleet apply": _types(fleet.FleetAppliedView, fleet.FleetApplyPlanView),
    "fleet cancel": _types(fleet.CancelledRunsView),
    "fleet history": _types(fleet.FleetHistoryView),
    "fleet pause": _types(fleet.FleetPausedView),
    "fleet resume": _types(fleet.FleetResumedView),
    "fleet run": _types(fleet.JobRunsView),
    "fleet status": _types(fleet.FleetView),
    "grants": _types(setup.GrantsView),
    "init": _types(init.InitView, init.InitPlanView),
    "key generate": _types(init.KeysView, init.KeysPlanView),
    "key show": _types(init.KeysView),
    "list": _types(backups.InventoryView, backup.LocalSetsView),
    "notify failed": _types(agent.NotifiedView),
    "notify test": _types(agent.NotifiedView),
    "pin": _types(backups.PinView, backups.UnpinView),
    "prune": _types(prune.PruneView, prune.PrunePlanView),
    "query": (DocumentType("answer", AnswerDocument),),
    "reap": _types(change.ReapView, change.ReapPlanView),
    "report show": _types(evidence.EvidenceReportView),
    "report records": _types(evidence.EvidencePageView),
    "report verify": _types(evidence.EvidenceCheckView),
    "rescue": _types(trial.RescueView, trial.RescuePlanView),
    "restore": _types(
        result.RestoreView,
        result.RestorePlanView,
        result.AbandonedView,
        result.MachineRestoreView,
        result.MachineRestorePlanView,
        result.MachineAbandonedView,
    ),
    "rewind": _types(result.RewindView, result.RewindPlanView, result.ReplicasRebuiltView),
    "runbook": _types(runbook.RunbookView),
    "setup": _types(setup.SetupView, setup.SetupPlanView, setup.RemovalView, setup.RemovalPlanView),
    "show": _types(backups.BackupDetailView),
    "snapshot": _types(backup.LocalSnapshotView, backup.LocalSnapshotPlanView),
    "status": _types(status.StatusView, status.AllStatusView),
    "undo": _types(binlog.UndoView),
    "verify": _types(verify.VerifyView, verify.VerifyPlanView),
    "vm base create": _types(machines.BaseCreatedView, machines.BasePlanView),
    "vm base destroy": _types(machines.BaseDestroyedView, machines.BaseDestroyPlanView),
    "vm base list": _types(machines.BasesView),
    "vm clone": _types(machines.MachinesMadeView, machines.MachinesPlanView),
    "vm destroy": _types(machines.MachineDestroyedView, machines.MachineDestroyPlanView),
    "token create": _types(tokens.NewTokenView),
    "token keys": _types(tokens.IssuerKeysView),
    "token list": _types(tokens.TokensView),
    "token revoke": _types(tokens.RevokedTokenView),
    "vm extend": _types(machines.MachineChangedView),
    "vm list": _types(machines.MachinesView),
    "vm protect": _types(machines.MachineChangedView),
    "vm reset": _MACHINE,
    "vm start": _MACHINE,
    "vm stop": _MACHINE,
}
"""What each command prints under `--json` if it succeeds. A command that fails prints an error instead."""


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of every document that a command prints. UsageError if the command prints none."""
    if command not in DOCUMENTS:
        raise UsageError(
            f"there is no command {command!r} with --json", hint=f"choose from: {', '.join(sorted(DOCUMENTS))}"
        )
    return schema(f"zsnapdb {command} --json", (*DOCUMENTS[command], _ERROR))


def whole_schema() -> dict[str, Any]:
    """Return the schema of every document that any command prints."""
    kinds = {one.kind: one for types in DOCUMENTS.values() for one in types}
    return schema("zsnapdb --json", (*(kinds[name] for name in sorted(kinds)), _ERROR))


def schema(title: str, types: tuple[DocumentType, ...]) -> dict[str, Any]:
    """Return one schema for documents of several kinds. Its definitions are the kinds and the parts of them."""
    kinds, parts = {}, {}
    for one in types:
        made = one.schema()
        parts.update(made.pop("$defs", {}))
        kinds[one.kind] = made
    return {
        "$schema": DIALECT,
        "title": title,
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in kinds],
        "$defs": {**kinds, **dict(sorted(parts.items()))},
    }
