"""The commands of `zsnapdb`, each declared once. `groups.py` makes the command line of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum


class Heading(StrEnum):
    """The headings of the help of `zsnapdb`, in their order."""

    BACKUP = "Backup"
    RESTORE = "Restore"
    CLONES = "Clones"
    REPOSITORY = "Repository"
    HOST = "Host"
    PROGRAMS = "For programs and shells"


class EvidenceKeeper(Enum):
    """Whose evidence log has a record of a command: its instance's, or that of the instances of the clone it names."""

    OF_INSTANCE = "instance"
    OF_CLONE = "clone"


@dataclass(frozen=True)
class Command:
    """A command: `run` is its function below `zsnapdb.cli`, whose docstring is its help.

    `documents` are the views below `zsnapdb.report` that it prints under `--json` (MODULE:VIEW,VIEW). `notifies`: the
    targets of the configuration hear of its starts and ends. `only_with` is the option without which it changes nothing
    and leaves no evidence. `passes_words_on`: words that it does not know are for another program.
    """

    run: str
    heading: Heading | None = None
    documents: str = ""
    notifies: bool = False
    evidence: EvidenceKeeper | None = None
    only_with: str | None = None
    hidden: bool = False
    passes_words_on: bool = False


@dataclass(frozen=True)
class Group:
    """A group of commands. `run` is the function of the group itself. It may show its help if no word follows."""

    help: str
    heading: Heading | None = None
    run: str | None = None
    shows_help: bool = True
    hidden: bool = False


OF_INSTANCE, OF_CLONE = EvidenceKeeper.OF_INSTANCE, EvidenceKeeper.OF_CLONE
_CHANGED = "clone.change:ChangedView,IntentionView"
_MACHINE = "vm.machines:MachineChangedView,MachineStepView"
COMMANDS: Mapping[str, Command | Group] = {
    "backup": Command(
        "backup.backup", Heading.BACKUP, "backup:BackupView,BackupPlanView", notifies=True, evidence=OF_INSTANCE
    ),
    "snapshot": Command(
        "backup.snapshot", Heading.BACKUP, "backup:LocalSnapshotView,LocalSnapshotPlanView", notifies=True
    ),
    "list": Command("inventory.list_backups", Heading.BACKUP, "repository.list:InventoryView backup:LocalSetsView"),
    "show": Command("inventory.show_backup", Heading.BACKUP, "repository.list:BackupDetailView"),
    "status": Command("inventory.status", Heading.BACKUP, "repository.status:StatusView,AllStatusView"),
    "restore": Command(
        "restore.restore",
        Heading.RESTORE,
        "restore.result:RestoreView,RestorePlanView,AbandonedView,MachineRestoreView,MachineRestorePlanView,MachineAbandonedView",
        evidence=OF_INSTANCE,
    ),
    "rewind": Command(
        "rewind.rewind",
        Heading.RESTORE,
        "restore.result:RewindView,RewindPlanView,ReplicasRebuiltView",
        notifies=True,
        evidence=OF_INSTANCE,
    ),
    "runbook": Command("restore.runbook", Heading.RESTORE, "restore.runbook:RunbookView"),
    "rescue": Command("rescue.rescue", Heading.RESTORE, "trial.drill:RescueView,RescuePlanView", evidence=OF_INSTANCE),
    "undo": Command("rescue.undo", Heading.RESTORE, "binlog:UndoView", evidence=OF_INSTANCE, only_with="applied"),
    "drill": Command(
        "drill.drill",
        Heading.RESTORE,
        "trial.drill:DrillView,DrillPlanView,MachineDrillPlanView",
        notifies=True,
        evidence=OF_INSTANCE,
    ),
    "drills": Command("drill.drills", Heading.RESTORE, "trial.drill:DrillsView,EvidenceView"),
    "serve": Command("serve.serve", Heading.CLONES),
    "serve-helper": Command("serve.serve_helper", Heading.CLONES),
    "mcp": Command("mcp.mcp", Heading.CLONES),
    "query": Command("query.query", Heading.CLONES, "clone.query:JsonAnswer"),
    "diff": Command("query.diff", Heading.CLONES, "clone.query:JsonDifference"),
    "migration-check": Command("clone.rehearsal.migration_check", Heading.CLONES, "clone.migration:MigrationView"),
    "reap": Command("clone.pool.reap", Heading.CLONES, "clone.change:ReapView,ReapPlanView"),
    "init": Command("repository.init", Heading.REPOSITORY, "repository.init:InitView,InitPlanView"),
    "verify": Command(
        "repository.verify", Heading.REPOSITORY, "repository.verify:VerifyView,VerifyPlanView", notifies=True
    ),
    "copy": Command(
        "repository.copy",
        Heading.REPOSITORY,
        "repository.prune:CopyView,CopyPlanView",
        notifies=True,
        evidence=OF_INSTANCE,
    ),
    "consolidate": Command(
        "repository.consolidate",
        Heading.REPOSITORY,
        "trial.drill:ConsolidateView,ConsolidatePlanView",
        evidence=OF_INSTANCE,
    ),
    "prune": Command(
        "repository.prune",
        Heading.REPOSITORY,
        "repository.prune:PruneView,PrunePlanView",
        notifies=True,
        evidence=OF_INSTANCE,
    ),
    "pin": Command("repository.pin", Heading.REPOSITORY, "repository.list:PinView,UnpinView", evidence=OF_INSTANCE),
    "unpin": Command("repository.unpin", evidence=OF_INSTANCE, hidden=True),
    "adopt": Command("repository.adopt", Heading.REPOSITORY, "repository.list:AdoptView", evidence=OF_INSTANCE),
    "acknowledge-removed": Command(
        "repository.acknowledge_removed", Heading.REPOSITORY, "repository.list:ForgetView", evidence=OF_INSTANCE
    ),
    "forget": Command("repository.forget", evidence=OF_INSTANCE, hidden=True),
    "setup": Command("setup.setup", Heading.HOST, "setup:SetupView,SetupPlanView,RemovalView,RemovalPlanView"),
    "doctor": Command("doctor.doctor", Heading.HOST, "doctor:DoctorView,LoadView"),
    "advise": Command("doctor.advise", hidden=True),
    "grants": Command("configuration.grants", Heading.HOST, "setup:GrantsView"),
    "example": Command("configuration.example", Heading.HOST, "setup:ExampleView,ExamplesView"),
    "schema": Command("schema.schema", Heading.PROGRAMS),
    "completion": Command("completion.completion", Heading.PROGRAMS),
    "fleet": Group("Look at all instances of all hosts, and run their jobs.", Heading.BACKUP),
    "fleet worker": Command("fleet.worker"),
    "fleet control": Command("fleet.control"),
    "fleet dev": Command("fleet.dev"),
    "fleet apply": Command("fleet.apply", documents="fleet.status:FleetAppliedView,FleetApplyPlanView"),
    "fleet run": Command("fleet.run", documents="fleet.status:JobRunsView"),
    "fleet pause": Command("fleet.pause", documents="fleet.status:FleetPausedView"),
    "fleet resume": Command("fleet.resume", documents="fleet.status:FleetResumedView"),
    "fleet cancel": Command("fleet.cancel", documents="fleet.status:CancelledRunsView"),
    "fleet history": Command("fleet.history", documents="fleet.status:FleetHistoryView"),
    "fleet status": Command("fleet.status", documents="fleet.status:FleetView"),
    "binlog": Group("Archive binlogs for restores to any point in time.", Heading.BACKUP),
    "binlog archive": Command("binlog.archive", documents="binlog:ArchivingView"),
    "binlog status": Command("binlog.status", documents="binlog:BinlogArchiveView"),
    "binlog purge": Command("binlog.purge", documents="binlog:PurgeView,PurgePlanView"),
    "binlog find": Command("binlog.find", documents="binlog:SearchView,FollowedView"),
    "clone": Group("Run ephemeral servers on clones of snapshots.", Heading.CLONES),
    "clone create": Command(
        "clone.create.create",
        documents="clone.create:CreatedView,ClonePlanView,HandOutPlanView,CloneSetView,CloneSetPlanView",
    ),
    "clone prepare": Command(
        "clone.pool.prepare",
        documents="clone.create:PreparedView,RemovedFormsView clone.change:IntentionView",
        evidence=OF_INSTANCE,
    ),
    "clone pool": Command("clone.pool.pool", documents="clone.pool:FilledPoolView,PoolPlanView"),
    "clone addresses": Command("clone.life.addresses", documents="clone.list:AddressesView"),
    "clone list": Command("clone.life.list_clones", documents="clone.list:ClonesView"),
    "clone show": Command("clone.life.show_clone", documents="clone.list:CloneDetailView"),
    "clone connect": Command("clone.life.connect", documents="clone.list:LoginView", passes_words_on=True),
    "clone logs": Command("clone.life.logs", documents="clone.list:ServerLogView"),
    "clone start": Command("clone.life.start", documents=_CHANGED, evidence=OF_CLONE),
    "clone stop": Command("clone.life.stop", documents=_CHANGED, evidence=OF_CLONE),
    "clone reset": Command("clone.life.reset", documents="clone.change:ResetView,ResetPlanView", evidence=OF_CLONE),
    "clone extend": Command("clone.life.extend", documents=_CHANGED, evidence=OF_CLONE),
    "clone protect": Command("clone.life.protect", documents=_CHANGED, evidence=OF_CLONE),
    "clone rename": Command("clone.life.rename", documents=_CHANGED, evidence=OF_CLONE),
    "clone heartbeat": Command("clone.life.send_heartbeat", documents=_CHANGED),
    "clone keep": Command("clone.life.keep", documents="clone.change:ResetView,ChangedView"),
    "clone beat": Command("clone.life.send_heartbeat", documents=_CHANGED, hidden=True),
    "clone hold": Command("clone.life.keep", documents="clone.change:ResetView,ChangedView", hidden=True),
    "clone commit": Command(
        "clone.life.commit", documents="clone.change:CommittedView,IntentionView", evidence=OF_CLONE
    ),
    "clone detach": Command(
        "clone.life.detach", documents="clone.change:DetachedView,DetachPlanView", evidence=OF_CLONE
    ),
    "clone destroy": Command(
        "clone.life.destroy", documents="clone.change:DestroyedView,DestroyPlanView", evidence=OF_CLONE
    ),
    "clone upgrade-test": Command("clone.rehearsal.upgrade_test", documents="clone.migration:RehearsalView"),
    "clone branch": Group("Named lines of commits of a clone."),
    "clone branch create": Command(
        "clone.branch.create", documents="clone.branches:BranchesView clone.change:IntentionView", evidence=OF_CLONE
    ),
    "clone branch switch": Command(
        "clone.branch.switch", documents="clone.branches:SwitchedView clone.change:IntentionView", evidence=OF_CLONE
    ),
    "clone branch list": Command("clone.branch.list_branches", documents="clone.branches:BranchesView"),
    "clone branch log": Command("clone.branch.log", documents="clone.branches:BranchLogView"),
    "clone branch diff": Command("clone.branch.diff", documents="clone.branches:BranchDifferenceView"),
    "clone branch delete": Command(
        "clone.branch.delete", documents="clone.branches:BranchesView clone.change:IntentionView", evidence=OF_CLONE
    ),
    "vm": Group("Clone virtual machines on zvols.", Heading.CLONES),
    "vm clone": Command("vm.clone", documents="vm.machines:MachinesMadeView,MachinesPlanView"),
    "vm list": Command("vm.list_machines", documents="vm.machines:MachinesView"),
    "vm start": Command("vm.start", documents=_MACHINE),
    "vm stop": Command("vm.stop", documents=_MACHINE),
    "vm reset": Command("vm.reset", documents=_MACHINE),
    "vm extend": Command("vm.extend", documents="vm.machines:MachineChangedView"),
    "vm protect": Command("vm.protect", documents="vm.machines:MachineChangedView"),
    "vm destroy": Command("vm.destroy", documents="vm.machines:MachineDestroyedView,MachineDestroyPlanView"),
    "vm base": Group("Make, list and destroy bases."),
    "vm base create": Command("vm.create", documents="vm.machines:BaseCreatedView,BasePlanView"),
    "vm base list": Command("vm.list_bases", documents="vm.machines:BasesView"),
    "vm base destroy": Command("vm.destroy_base", documents="vm.machines:BaseDestroyedView,BaseDestroyPlanView"),
    "token": Group("Make and revoke the tokens of `zsnapdb serve`, and show the keys of issuers.", Heading.CLONES),
    "token create": Command("token.create_token", documents="tokens:NewTokenView"),
    "token list": Command("token.list_tokens", documents="tokens:TokensView"),
    "token revoke": Command("token.revoke_token", documents="tokens:RevokedTokenView"),
    "token keys": Command("token.issuer_keys", documents="tokens:IssuerKeysView"),
    "token exchange": Command("token.exchange_code", hidden=True),
    "report": Group("Show and check the evidence of what was done.", Heading.REPOSITORY, shows_help=False),
    "report show": Command("report.report_show", documents="repository.evidence:EvidenceReportView"),
    "report records": Command("report.report_records", documents="repository.evidence:EvidencePageView"),
    "report verify": Command("report.report_verify", documents="repository.evidence:EvidenceCheckView"),
    "agent": Group("Run the jobs of this host by their schedules.", Heading.HOST, run="agent.agent", shows_help=False),
    "agent status": Command("agent.agent_status", documents="agent:AgentView"),
    "agent run": Command("agent.agent_run", documents="agent:AgentRunView"),
    "agent pause": Command("agent.agent_pause", documents="agent:PauseView"),
    "key": Group("Make and show the keys of repositories.", Heading.REPOSITORY),
    "key generate": Command("key.generate", documents="repository.init:KeysView,KeysPlanView"),
    "key show": Command("key.show_keys", documents="repository.init:KeysView"),
    "config": Group("Check the configuration file.", Heading.HOST),
    "config check": Command("configuration.check", documents="setup:ConfigurationView"),
    "notify": Group("Notifications to people and services.", Heading.HOST, shows_help=False),
    "notify test": Command("configuration.notify_test", documents="agent:NotifiedView"),
    "notify failed": Command("configuration.notify_failed", documents="agent:NotifiedView"),
}
"""Each command and group by its words, in the order of the help."""
