"""The commands of `zsnapdb`, each declared once. `command_groups.py` builds the command line from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum


class Heading(StrEnum):
    """Headings of the help of `zsnapdb`, in their order."""

    BACKUP = "Backup"
    RESTORE = "Restore"
    CLONES = "Clones"
    REPOSITORY = "Repository"
    HOST = "Host"
    PROGRAMS = "For programs and shells"


class EvidenceKeeper(Enum):
    """Owner of the evidence log of a command: its instance, or the instances of its clone."""

    OF_INSTANCE = "instance"
    OF_CLONE = "clone"


@dataclass(frozen=True)
class Command:
    """A command. `run` is its function below `zsnapdb.cli`, whose docstring is its help.

    - `documents`: the views below `zsnapdb.report` that it prints under `--json` (MODULE:VIEW,VIEW).
    - `notifies`: its start and end are sent to the targets of the configuration.
    - `only_with`: the option without which it changes nothing and leaves no evidence.
    - `passes_words_on`: unknown words are arguments of another program.
    - `examples`: command lines after `zsnapdb`, for its help and its manual page.
    """

    run: str
    heading: Heading | None = None
    documents: str = ""
    notifies: bool = False
    evidence: EvidenceKeeper | None = None
    only_with: str | None = None
    hidden: bool = False
    passes_words_on: bool = False
    examples: tuple[str, ...] = ()

    @property
    def epilog(self) -> str | None:
        """The end of its help: the examples, in lines that click does not wrap. None if there is none."""
        return "\n".join(["\b", "Examples:", *(f"  zsnapdb {one}" for one in self.examples)]) if self.examples else None


@dataclass(frozen=True)
class Group:
    """A group of commands. `run` is the function of the group itself.

    `shows_help`: without a word it shows its help.
    """

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
        "backup.backup",
        Heading.BACKUP,
        "backup:BackupView,BackupPlanView",
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("backup main --plan", "backup main", "backup main --set latest"),
    ),
    "snapshot": Command(
        "backup.snapshot",
        Heading.BACKUP,
        "backup:LocalSnapshotView,LocalSnapshotPlanView",
        notifies=True,
        examples=("snapshot main",),
    ),
    "list": Command(
        "inventory.list_backups",
        Heading.BACKUP,
        "repository.list:InventoryView,StoredInstancesView backup:LocalSetsView",
        examples=("list main", "list main --local", "list --instances"),
    ),
    "show": Command(
        "inventory.show_backup", Heading.BACKUP, "repository.list:BackupDetailView", examples=("show main latest",)
    ),
    "status": Command(
        "inventory.status",
        Heading.BACKUP,
        "repository.status:StatusView,AllStatusView",
        examples=("status main", "status --all --metrics /var/lib/prometheus/node-exporter/zsnapdb.prom"),
    ),
    "restore": Command(
        "restore.restore",
        Heading.RESTORE,
        "restore.result:RestoreView,RestorePlanView,AbandonedView,MachineRestoreView,MachineRestorePlanView,MachineAbandonedView",
        evidence=OF_INSTANCE,
        examples=(
            "restore main --plan",
            "restore main --to 10m --target tank/restored",
            "restore main --to 2026-11-20T10:00:00Z --handover run",
        ),
    ),
    "rewind": Command(
        "rewind.rewind",
        Heading.RESTORE,
        "restore.result:RewindView,RewindPlanView,ReplicasRebuiltView",
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("rewind main --to 10m --plan", "rewind main --to 10m"),
    ),
    "runbook": Command(
        "restore.runbook", Heading.RESTORE, "restore.runbook:RunbookView", examples=("runbook main --to latest",)
    ),
    "rescue": Command(
        "rescue.rescue",
        Heading.RESTORE,
        "trial.drill:RescueView,RescuePlanView",
        evidence=OF_INSTANCE,
        examples=(
            "rescue main --table shop.orders --to 10m --into orders.sql",
            "rescue main --table shop.orders --to 10m --into-instance main",
        ),
    ),
    "undo": Command(
        "rescue.undo",
        Heading.RESTORE,
        "binlog:UndoView",
        evidence=OF_INSTANCE,
        only_with="applied",
        examples=("undo main --gtid 0-1-4711", "undo main --gtid 0-1-4711 --try", "undo main --gtid 0-1-4711 --apply"),
    ),
    "drill": Command(
        "drill.drill",
        Heading.RESTORE,
        "trial.drill:DrillView,DrillPlanView,MachineDrillPlanView",
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("drill main --plan", "drill main", "drill main --to 1d"),
    ),
    "drills": Command(
        "drill.drills", Heading.RESTORE, "trial.drill:DrillsView,EvidenceView", examples=("drills main",)
    ),
    "serve": Command(
        "serve.serve",
        Heading.CLONES,
        examples=("serve --address 10.0.0.5 --tls-certificate serve.pem --tls-key serve.key",),
    ),
    "serve-helper": Command("serve.serve_helper", Heading.CLONES, examples=("serve-helper",)),
    "mcp": Command("mcp.mcp", Heading.CLONES, examples=("mcp --ttl 2h",)),
    "query": Command(
        "query.query",
        Heading.CLONES,
        "clone.query:JsonAnswer",
        examples=('query main "SELECT COUNT(*) FROM shop.orders" --at 10m',),
    ),
    "diff": Command(
        "query.diff",
        Heading.CLONES,
        "clone.query:JsonDifference",
        examples=("diff main --table shop.orders --from 1h --to latest",),
    ),
    "migration-check": Command(
        "clone.rehearsal.migration_check",
        Heading.CLONES,
        "clone.migration:MigrationView",
        examples=("migration-check main -- ./manage.py migrate",),
    ),
    "reap": Command(
        "clone.pool.reap", Heading.CLONES, "clone.change:ReapView,ReapPlanView", examples=("reap --plan", "reap")
    ),
    "init": Command(
        "repository.init",
        Heading.REPOSITORY,
        "repository.init:InitView,InitPlanView",
        examples=("init --plan", "init offsite"),
    ),
    "verify": Command(
        "repository.verify",
        Heading.REPOSITORY,
        "repository.verify:VerifyView,VerifyPlanView",
        notifies=True,
        examples=("verify main", "verify main --deep --older-than 30d --limit 3"),
    ),
    "copy": Command(
        "repository.copy",
        Heading.REPOSITORY,
        "repository.prune:CopyView,CopyPlanView",
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("copy main --to disk",),
    ),
    "consolidate": Command(
        "repository.consolidate",
        Heading.REPOSITORY,
        "trial.drill:ConsolidateView,ConsolidatePlanView",
        evidence=OF_INSTANCE,
        examples=("consolidate main --plan", "consolidate main latest"),
    ),
    "prune": Command(
        "repository.prune",
        Heading.REPOSITORY,
        "repository.prune:PruneView,PrunePlanView",
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("prune main --plan", "prune main"),
    ),
    "pin": Command(
        "repository.pin",
        Heading.REPOSITORY,
        "repository.list:PinView,UnpinView",
        evidence=OF_INSTANCE,
        examples=('pin main latest --reason "before the migration"', "pin main latest --remove"),
    ),
    "unpin": Command("repository.unpin", evidence=OF_INSTANCE, hidden=True),
    "adopt": Command(
        "repository.adopt",
        Heading.REPOSITORY,
        "repository.list:AdoptView",
        evidence=OF_INSTANCE,
        examples=("adopt main --plan", "adopt main"),
    ),
    "acknowledge-removed": Command(
        "repository.acknowledge_removed",
        Heading.REPOSITORY,
        "repository.list:ForgetView",
        evidence=OF_INSTANCE,
        examples=("acknowledge-removed main --plan",),
    ),
    "forget": Command("repository.forget", evidence=OF_INSTANCE, hidden=True),
    "setup": Command(
        "setup.setup",
        Heading.HOST,
        "setup:SetupView,SetupPlanView,RemovalView,RemovalPlanView",
        examples=("setup s3://backups/production --plan", "setup s3://backups/production"),
    ),
    "doctor": Command(
        "doctor.doctor",
        Heading.HOST,
        "doctor:DoctorView,LoadView",
        examples=("doctor", "doctor main --fix --plan", "doctor main --load --for 10m"),
    ),
    "advise": Command("doctor.advise", hidden=True),
    "sizing": Command(
        "sizing.sizing",
        Heading.HOST,
        "sizing:SizingView",
        examples=(
            "sizing --size 1TiB --change 20GiB/day",
            "sizing --size 10TiB --keep daily=30,monthly=12 --prices all",
        ),
    ),
    "grants": Command("configuration.grants", Heading.HOST, "setup:GrantsView", examples=("grants --flavour mysql",)),
    "example": Command(
        "configuration.example",
        Heading.HOST,
        "setup:ExampleView,ExamplesView",
        examples=("example", "example zsnapdb.toml"),
    ),
    "schema": Command("schema.schema", Heading.PROGRAMS, examples=("schema clone list",)),
    "completion": Command("completion.completion", Heading.PROGRAMS, examples=("completion bash",)),
    "fleet": Group("Show all instances of all hosts, and run their jobs.", Heading.BACKUP),
    "fleet worker": Command("fleet.worker", examples=("fleet worker",)),
    "fleet control": Command("fleet.control", examples=("fleet control --jobs jobs.toml",)),
    "fleet dev": Command("fleet.dev", examples=("fleet dev",)),
    "fleet apply": Command(
        "fleet.apply",
        documents="fleet.status:FleetAppliedView,FleetApplyPlanView",
        examples=("fleet apply jobs.toml --plan", "fleet apply jobs.toml"),
    ),
    "fleet run": Command(
        "fleet.run", documents="fleet.status:JobRunsView", examples=("fleet run backup --where instance=main",)
    ),
    "fleet pause": Command(
        "fleet.pause",
        documents="fleet.status:FleetPausedView",
        examples=('fleet pause --where instance=main --reason "maintenance"',),
    ),
    "fleet resume": Command(
        "fleet.resume", documents="fleet.status:FleetResumedView", examples=("fleet resume --where instance=main",)
    ),
    "fleet cancel": Command(
        "fleet.cancel", documents="fleet.status:CancelledRunsView", examples=("fleet cancel --where instance=main",)
    ),
    "fleet history": Command(
        "fleet.history", documents="fleet.status:FleetHistoryView", examples=("fleet history --most 20",)
    ),
    "fleet status": Command(
        "fleet.status", documents="fleet.status:FleetView", examples=("fleet status", "fleet status --where red")
    ),
    "binlog": Group("Archive binlogs for restores to any point in time.", Heading.BACKUP),
    "binlog archive": Command(
        "binlog.archive",
        documents="binlog:ArchivingView",
        examples=("binlog archive main", "binlog archive main --once"),
    ),
    "binlog status": Command("binlog.status", documents="binlog:BinlogArchiveView", examples=("binlog status main",)),
    "binlog purge": Command(
        "binlog.purge", documents="binlog:PurgeView,PurgePlanView", examples=("binlog purge main --plan",)
    ),
    "binlog find": Command(
        "binlog.find",
        documents="binlog:SearchView,FollowedView",
        examples=("binlog find main --table shop.orders --kind delete", "binlog find main --largest --limit 5"),
    ),
    "clone": Group("Run ephemeral servers on clones of snapshots.", Heading.CLONES),
    "clone create": Command(
        "clone.create.create",
        documents="clone.create:CreatedView,ClonePlanView,HandOutPlanView,CloneSetView,CloneSetPlanView",
        examples=("clone create main --name test", "clone create main --at 10m --ttl 2h"),
    ),
    "clone prepare": Command(
        "clone.pool.prepare",
        documents="clone.create:PreparedView,RemovedFormsView clone.change:IntentionView",
        evidence=OF_INSTANCE,
        examples=("clone prepare main",),
    ),
    "clone pool": Command(
        "clone.pool.pool", documents="clone.pool:FilledPoolView,PoolPlanView", examples=("clone pool main --plan",)
    ),
    "clone addresses": Command(
        "clone.lifecycle.addresses", documents="clone.list:AddressesView", examples=("clone addresses",)
    ),
    "clone list": Command("clone.lifecycle.list_clones", documents="clone.list:ClonesView", examples=("clone list",)),
    "clone show": Command(
        "clone.lifecycle.show_clone", documents="clone.list:CloneDetailView", examples=("clone show test",)
    ),
    "clone connect": Command(
        "clone.lifecycle.connect",
        documents="clone.list:LoginView",
        passes_words_on=True,
        examples=("clone connect test",),
    ),
    "clone login": Command(
        "clone.lifecycle.login",
        documents="clone.list:LoginView",
        evidence=OF_CLONE,
        examples=("clone login test", "clone login test --new"),
    ),
    "clone tunnel": Command("clone.tunnel.tunnel", examples=("clone tunnel test --via db1.example.com",)),
    "clone logs": Command(
        "clone.lifecycle.logs", documents="clone.list:ServerLogView", examples=("clone logs test --lines 50",)
    ),
    "clone start": Command(
        "clone.lifecycle.start", documents=_CHANGED, evidence=OF_CLONE, examples=("clone start test",)
    ),
    "clone stop": Command("clone.lifecycle.stop", documents=_CHANGED, evidence=OF_CLONE, examples=("clone stop test",)),
    "clone reset": Command(
        "clone.lifecycle.reset",
        documents="clone.change:ResetView,ResetPlanView",
        evidence=OF_CLONE,
        examples=("clone reset test --plan", "clone reset test"),
    ),
    "clone extend": Command(
        "clone.lifecycle.extend", documents=_CHANGED, evidence=OF_CLONE, examples=("clone extend test --ttl 8h",)
    ),
    "clone protect": Command(
        "clone.lifecycle.protect", documents=_CHANGED, evidence=OF_CLONE, examples=("clone protect test --for 2d",)
    ),
    "clone rename": Command(
        "clone.lifecycle.rename", documents=_CHANGED, evidence=OF_CLONE, examples=("clone rename test demo",)
    ),
    "clone heartbeat": Command(
        "clone.lifecycle.send_heartbeat", documents=_CHANGED, examples=("clone heartbeat test --while 4711",)
    ),
    "clone keep": Command(
        "clone.lifecycle.keep", documents="clone.change:ResetView,ChangedView", examples=("clone keep test",)
    ),
    "clone beat": Command("clone.lifecycle.send_heartbeat", hidden=True),
    "clone hold": Command("clone.lifecycle.keep", hidden=True),
    "clone commit": Command(
        "clone.lifecycle.commit",
        documents="clone.change:CommittedView,IntentionView",
        evidence=OF_CLONE,
        examples=("clone commit test",),
    ),
    "clone detach": Command(
        "clone.lifecycle.detach",
        documents="clone.change:DetachedView,DetachPlanView",
        evidence=OF_CLONE,
        examples=("clone detach test --plan",),
    ),
    "clone destroy": Command(
        "clone.lifecycle.destroy",
        documents="clone.change:DestroyedView,DestroyPlanView",
        evidence=OF_CLONE,
        examples=("clone destroy test --plan", "clone destroy test"),
    ),
    "clone upgrade-test": Command(
        "clone.rehearsal.upgrade_test",
        documents="clone.migration:RehearsalView",
        examples=("clone upgrade-test main --binary /opt/mysql-8.4/bin/mysqld",),
    ),
    "clone branch": Group("Named lines of commits of a clone."),
    "clone branch create": Command(
        "clone.branch.create",
        documents="clone.branches:BranchesView clone.change:IntentionView",
        evidence=OF_CLONE,
        examples=("clone branch create test feature",),
    ),
    "clone branch switch": Command(
        "clone.branch.switch",
        documents="clone.branches:SwitchedView clone.change:IntentionView",
        evidence=OF_CLONE,
        examples=("clone branch switch test feature",),
    ),
    "clone branch list": Command(
        "clone.branch.list_branches", documents="clone.branches:BranchesView", examples=("clone branch list test",)
    ),
    "clone branch log": Command(
        "clone.branch.log", documents="clone.branches:BranchLogView", examples=("clone branch log test",)
    ),
    "clone branch diff": Command(
        "clone.branch.diff",
        documents="clone.branches:BranchDifferenceView",
        examples=("clone branch diff test main feature",),
    ),
    "clone branch delete": Command(
        "clone.branch.delete",
        documents="clone.branches:BranchesView clone.change:IntentionView",
        evidence=OF_CLONE,
        examples=("clone branch delete test feature",),
    ),
    "vm": Group("Clone virtual machines on zvols.", Heading.CLONES),
    "vm clone": Command(
        "vm.clone",
        documents="vm.machines:MachinesMadeView,MachinesPlanView",
        examples=("vm clone web --name-template web-{n} --count 3 --plan",),
    ),
    "vm list": Command("vm.list_machines", documents="vm.machines:MachinesView", examples=("vm list",)),
    "vm start": Command("vm.start", documents=_MACHINE, examples=("vm start web-1",)),
    "vm stop": Command("vm.stop", documents=_MACHINE, examples=("vm stop web-1",)),
    "vm reset": Command("vm.reset", documents=_MACHINE, examples=("vm reset web-1",)),
    "vm extend": Command(
        "vm.extend", documents="vm.machines:MachineChangedView", examples=("vm extend web-1 --ttl 8h",)
    ),
    "vm protect": Command(
        "vm.protect", documents="vm.machines:MachineChangedView", examples=("vm protect web-1 --for 2d",)
    ),
    "vm destroy": Command(
        "vm.destroy",
        documents="vm.machines:MachineDestroyedView,MachineDestroyPlanView",
        examples=("vm destroy web-1 --plan",),
    ),
    "vm base": Group("Create, list and destroy bases."),
    "vm base create": Command(
        "vm.create",
        documents="vm.machines:BaseCreatedView,BasePlanView",
        examples=("vm base create web --from-domain web",),
    ),
    "vm base list": Command("vm.list_bases", documents="vm.machines:BasesView", examples=("vm base list",)),
    "vm base destroy": Command(
        "vm.destroy_base",
        documents="vm.machines:BaseDestroyedView,BaseDestroyPlanView",
        examples=("vm base destroy web --plan",),
    ),
    "token": Group("Create and revoke tokens of `zsnapdb serve`, and show the keys of issuers.", Heading.CLONES),
    "token create": Command(
        "token.create_token",
        documents="tokens:NewTokenView",
        examples=("token create --for user:ann@example.org --expires 30d",),
    ),
    "token list": Command("token.list_tokens", documents="tokens:TokensView", examples=("token list",)),
    "token revoke": Command(
        "token.revoke_token", documents="tokens:RevokedTokenView", examples=("token revoke 0123abcd",)
    ),
    "token keys": Command("token.issuer_keys", documents="tokens:IssuerKeysView", examples=("token keys corporate",)),
    "token exchange": Command("token.exchange_code", hidden=True),
    "report": Group("Show and check the evidence of actions.", Heading.REPOSITORY, shows_help=False),
    "report show": Command(
        "report.report_show",
        documents="repository.evidence:EvidenceReportView",
        examples=("report show main --from 2026-11-01 --to 2026-11-30",),
    ),
    "report records": Command(
        "report.report_records",
        documents="repository.evidence:EvidencePageView",
        examples=("report records main --most 20",),
    ),
    "report verify": Command(
        "report.report_verify", documents="repository.evidence:EvidenceCheckView", examples=("report verify main",)
    ),
    "agent": Group("Run the scheduled jobs of this host.", Heading.HOST, run="agent.agent", shows_help=False),
    "agent status": Command("agent.agent_status", documents="agent:AgentView", examples=("agent status",)),
    "agent run": Command("agent.agent_run", documents="agent:AgentRunView", examples=("agent run drill main",)),
    "agent pause": Command(
        "agent.agent_pause", documents="agent:PauseView", examples=('agent pause main --for 2h --reason "maintenance"',)
    ),
    "key": Group("Generate and show the keys of repositories.", Heading.REPOSITORY),
    "key generate": Command(
        "key.generate",
        documents="repository.init:KeysView,KeysPlanView",
        examples=("key generate --identity identity --signing-key signing-key",),
    ),
    "key show": Command("key.show_keys", documents="repository.init:KeysView", examples=("key show",)),
    "config": Group("Check and show the configuration.", Heading.HOST),
    "config check": Command("configuration.check", documents="setup:ConfigurationView", examples=("config check",)),
    "config show": Command(
        "configuration.show_settings",
        documents="setup:EffectiveConfigurationView",
        examples=("config show", "config show instance.main.lock"),
    ),
    "notify": Group("Notifications to people and services.", Heading.HOST, shows_help=False),
    "notify test": Command(
        "configuration.notify_test", documents="agent:NotifiedView", examples=("notify test", "notify test ops")
    ),
    "notify failed": Command(
        "configuration.notify_failed", documents="agent:NotifiedView", examples=("notify failed zsnapdb-backup@main",)
    ),
}
"""Each command and group by its words, in the order of the help."""
