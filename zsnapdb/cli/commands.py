"""The commands of `zsnapdb`. Each command is declared once in this module.

`command_groups.py` builds the command line from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum


class Heading(StrEnum):
    """Headings in the help of `zsnapdb`, in their order."""

    BACKUP = "Backup"
    RESTORE = "Restore"
    CLONES = "Clones"
    REPOSITORY = "Repository"
    HOST = "Host"
    PROGRAMS = "For programs and shells"


class EvidenceKeeper(Enum):
    """Owner of the evidence log of a command: its instance, the instances of its clone, or all instances."""

    OF_INSTANCE = "instance"
    OF_CLONE = "clone"
    OF_HOST = "host"


@dataclass(frozen=True)
class Command:
    """A declared command. `run` names the function in `zsnapdb.cli` whose docstring is the command's help.

    - `documents`: the views in `zsnapdb.report` that the command prints with `--json` (MODULE:VIEW,VIEW).
    - `notifies`: whether the command notifies the configured targets of its start and end.
    - `only_with`: the option without which the command changes nothing and leaves no evidence.
    - `passes_words_on`: whether unknown arguments are passed to another program.
    - `examples`: command lines for its help and its manual page, declared without the command's name.
    """

    run: str
    documents: str = ""
    heading: Heading | None = None
    notifies: bool = False
    evidence: EvidenceKeeper | None = None
    only_with: str | None = None
    hidden: bool = False
    passes_words_on: bool = False
    examples: tuple[str, ...] = ()

    @property
    def epilog(self) -> str | None:
        """The end of the command's help: the examples, in lines that click does not wrap.

        None if the command has no examples.
        """
        return "\n".join(["\b", "Examples:", *(f"  zsnapdb {one}" for one in self.examples)]) if self.examples else None


@dataclass(frozen=True)
class Group:
    """A group of commands. The function `run` is that of the group itself.

    If `shows_help` is set, the group shows its help when it gets no arguments.
    """

    help: str
    heading: Heading | None = None
    run: str | None = None
    shows_help: bool = True
    hidden: bool = False


OF_INSTANCE, OF_CLONE, OF_HOST = EvidenceKeeper
_CHANGED = "clone.change:ChangedView,IntentionView"
_MACHINE = "machines:MachineChangedView,MachineStepView"
_DECLARED: Mapping[str, Command | Group] = {
    "backup": Command(
        "backup.backup",
        "backup:BackupView,BackupPlanView",
        Heading.BACKUP,
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("main --plan", "main", "main --set latest"),
    ),
    "snapshot": Command(
        "backup.snapshot",
        "backup:LocalSnapshotView,LocalSnapshotPlanView",
        Heading.BACKUP,
        notifies=True,
        examples=("main",),
    ),
    "list": Command(
        "inventory.list_backups",
        "repository.list:InventoryView,StoredInstancesView backup:LocalSetsView",
        Heading.BACKUP,
        examples=("main", "main --local", "--instances"),
    ),
    "show": Command(
        "inventory.show_backup",
        "repository.list:BackupDetailView,BackupSettingsView",
        Heading.BACKUP,
        examples=("main latest", "main latest --settings"),
    ),
    "status": Command(
        "inventory.status",
        "repository.protection:StatusView,AllStatusView",
        Heading.BACKUP,
        examples=("main", "--all --metrics /var/lib/prometheus/node-exporter/zsnapdb.prom"),
    ),
    "restore": Command(
        "restore.restore",
        "restore:RestoreView,RestorePlanView,AbandonedView,MachineRestoreView,MachineRestorePlanView,MachineAbandonedView",
        Heading.RESTORE,
        evidence=OF_INSTANCE,
        examples=(
            "main --plan",
            "main --to 10m --target tank/restored",
            "main --to 2026-11-20T10:00:00Z --handover run",
        ),
    ),
    "retrieve": Command(
        "restore.retrieve",
        "restore:RetrievalView,RetrievalPlanView",
        Heading.RESTORE,
        evidence=OF_INSTANCE,
        examples=("main --plan", "main --to 2026-11-20T10:00:00Z --tier bulk --wait 2d"),
    ),
    "rewind": Command(
        "restore.rewind",
        "restore:RewindView,RewindPlanView,ReplicasRebuiltView",
        Heading.RESTORE,
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("main --to 10m --plan", "main --to 10m"),
    ),
    "runbook": Command("restore.runbook", "runbook:RunbookView", Heading.RESTORE, examples=("main --to latest",)),
    "rescue": Command(
        "rescue.rescue",
        "trial:RescueView,RescuePlanView",
        Heading.RESTORE,
        evidence=OF_INSTANCE,
        examples=(
            "main --table shop.orders --to 10m --into orders.sql",
            "main --table shop.orders --to 10m --into-instance main",
        ),
    ),
    "undo": Command(
        "rescue.undo",
        "binlog:UndoView",
        Heading.RESTORE,
        evidence=OF_INSTANCE,
        only_with="applied",
        examples=("main --gtid 0-1-4711", "main --gtid 0-1-4711 --try", "main --gtid 0-1-4711 --apply"),
    ),
    "drill": Command(
        "drill.drill",
        "trial:DrillView,DrillPlanView,MachineDrillPlanView",
        Heading.RESTORE,
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("main --plan", "main", "main --to 1d"),
    ),
    "drills": Command("drill.drills", "trial:DrillsView,EvidenceView", Heading.RESTORE, examples=("main",)),
    "serve": Command(
        "serve.serve",
        heading=Heading.CLONES,
        examples=("--address 10.0.0.5 --tls-certificate serve.pem --tls-key serve.key",),
    ),
    "serve-helper": Command("serve.serve_helper", heading=Heading.CLONES, examples=("",)),
    "mcp": Command("mcp.mcp", heading=Heading.CLONES, examples=("--ttl 2h",)),
    "query": Command(
        "query.query",
        "clone.query:JsonAnswer",
        Heading.CLONES,
        evidence=OF_INSTANCE,
        examples=('main "SELECT COUNT(*) FROM shop.orders" --at 10m',),
    ),
    "diff": Command(
        "query.diff",
        "clone.query:JsonDifference",
        Heading.CLONES,
        evidence=OF_INSTANCE,
        examples=("main --table shop.orders --from 1h --to latest",),
    ),
    "migration-check": Command(
        "clone.rehearsal.migration_check",
        "clone.migration:MigrationView",
        Heading.CLONES,
        evidence=OF_INSTANCE,
        examples=("main -- ./manage.py migrate",),
    ),
    "reap": Command("clone.pool.reap", "clone.change:ReapView,ReapPlanView", Heading.CLONES, examples=("--plan", "")),
    "init": Command(
        "repository.init", "repository.init:InitView,InitPlanView", Heading.REPOSITORY, examples=("--plan", "offsite")
    ),
    "verify": Command(
        "repository.verify",
        "repository.prune:VerifyView,VerifyPlanView",
        Heading.REPOSITORY,
        notifies=True,
        examples=("main", "main --deep --older-than 30d --limit 3"),
    ),
    "copy": Command(
        "repository.copy",
        "repository.prune:CopyView,CopyPlanView",
        Heading.REPOSITORY,
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("main --to disk",),
    ),
    "consolidate": Command(
        "repository.consolidate",
        "trial:ConsolidateView,ConsolidatePlanView",
        Heading.REPOSITORY,
        evidence=OF_INSTANCE,
        examples=("main --plan", "main latest"),
    ),
    "prune": Command(
        "repository.prune",
        "repository.prune:PruneView,PrunePlanView",
        Heading.REPOSITORY,
        notifies=True,
        evidence=OF_INSTANCE,
        examples=("main --plan", "main"),
    ),
    "pin": Command(
        "repository.pin",
        "repository.list:PinView,UnpinView",
        Heading.REPOSITORY,
        evidence=OF_INSTANCE,
        examples=('main latest --reason "before the migration"', "main latest --remove"),
    ),
    "unpin": Command("repository.unpin", evidence=OF_INSTANCE, hidden=True),
    "adopt": Command(
        "repository.adopt",
        "repository.list:AdoptView",
        Heading.REPOSITORY,
        evidence=OF_INSTANCE,
        examples=("main --plan", "main"),
    ),
    "acknowledge-removed": Command(
        "repository.acknowledge_removed",
        "repository.list:ForgetView",
        Heading.REPOSITORY,
        evidence=OF_INSTANCE,
        examples=("main --plan",),
    ),
    "forget": Command("repository.forget", evidence=OF_INSTANCE, hidden=True),
    "setup": Command(
        "setup.setup",
        "setup:SetupView,SetupPlanView,RemovalView,RemovalPlanView",
        Heading.HOST,
        examples=("s3://backups/production --plan", "s3://backups/production"),
    ),
    "doctor": Command(
        "doctor.doctor",
        "doctor:DoctorView,LoadView",
        Heading.HOST,
        evidence=OF_HOST,
        only_with="fix",
        examples=("", "main --fix --plan", "main --load --for 10m"),
    ),
    "advise": Command("doctor.advise", hidden=True),
    "sizing": Command(
        "doctor.sizing",
        "setup:SizingView",
        Heading.HOST,
        examples=("--size 1TiB --change 20GiB/day", "--size 10TiB --keep daily=30,monthly=12 --prices all"),
    ),
    "grants": Command("config_commands.grants", "setup:GrantsView", Heading.HOST, examples=("--flavour mysql",)),
    "example": Command(
        "config_commands.example", "setup:ExampleView,ExamplesView", Heading.HOST, examples=("", "zsnapdb.toml")
    ),
    "schema": Command("schema.schema", heading=Heading.PROGRAMS, examples=("clone list",)),
    "completion": Command("completion.completion", heading=Heading.PROGRAMS, examples=("bash",)),
    "fleet": Group("Show all instances of all hosts, and run their jobs.", Heading.BACKUP),
    "fleet worker": Command("fleet.worker", examples=("",)),
    "fleet control": Command("fleet.control", examples=("--jobs jobs.toml",)),
    "fleet dev": Command("fleet.dev", examples=("",)),
    "fleet apply": Command(
        "fleet.apply", "fleet:FleetAppliedView,FleetApplyPlanView", examples=("jobs.toml --plan", "jobs.toml")
    ),
    "fleet run": Command("fleet.run", "fleet:JobRunsView", examples=("backup --where instance=main",)),
    "fleet pause": Command(
        "fleet.pause", "fleet:FleetPausedView", examples=('--where instance=main --reason "maintenance"',)
    ),
    "fleet resume": Command("fleet.resume", "fleet:FleetResumedView", examples=("--where instance=main",)),
    "fleet cancel": Command("fleet.cancel", "fleet:CancelledRunsView", examples=("--where instance=main",)),
    "fleet history": Command("fleet.history", "fleet:FleetHistoryView", examples=("--most 20",)),
    "fleet status": Command("fleet.status", "fleet:FleetView", examples=("", "--where red")),
    "binlog": Group("Archive binlogs for restores to any point in time.", Heading.BACKUP),
    "binlog archive": Command("binlog.archive", "binlog:ArchivingView", examples=("main", "main --once")),
    "binlog status": Command("binlog.status", "binlog:BinlogArchiveView", examples=("main",)),
    "binlog purge": Command(
        "binlog.purge", "binlog:PurgeView,PurgePlanView", evidence=OF_INSTANCE, examples=("main --plan",)
    ),
    "binlog find": Command(
        "binlog.find",
        "binlog:SearchView,FollowedView",
        examples=("main --table shop.orders --kind delete", "main --largest --limit 5"),
    ),
    "clone": Group("Run ephemeral servers on clones of snapshots.", Heading.CLONES),
    "clone create": Command(
        "clone.create.create",
        "clone.create:CreatedView,ClonePlanView,HandOutPlanView,CloneSetView,CloneSetPlanView",
        examples=("main --name test", "main --at 10m --ttl 2h"),
    ),
    "clone prepare": Command(
        "clone.pool.prepare",
        "clone.create:PreparedView,RemovedFormsView clone.change:IntentionView",
        evidence=OF_INSTANCE,
        examples=("main",),
    ),
    "clone pool": Command("clone.pool.pool", "clone.create:FilledPoolView,PoolPlanView", examples=("main --plan",)),
    "clone addresses": Command("clone.lifecycle.addresses", "clone.list:AddressesView", examples=("",)),
    "clone list": Command("clone.lifecycle.list_clones", "clone.list:ClonesView", examples=("",)),
    "clone show": Command("clone.lifecycle.show_clone", "clone.list:CloneDetailView", examples=("test",)),
    "clone connect": Command(
        "clone.lifecycle.connect", "clone.list:LoginView", passes_words_on=True, examples=("test",)
    ),
    "clone login": Command(
        "clone.lifecycle.login", "clone.list:LoginView", evidence=OF_CLONE, examples=("test", "test --new")
    ),
    "clone tunnel": Command("clone.tunnel.tunnel", examples=("test --via db1.example.com",)),
    "clone logs": Command("clone.lifecycle.logs", "clone.list:ServerLogView", examples=("test --lines 50",)),
    "clone start": Command("clone.lifecycle.start", _CHANGED, evidence=OF_CLONE, examples=("test",)),
    "clone stop": Command("clone.lifecycle.stop", _CHANGED, evidence=OF_CLONE, examples=("test",)),
    "clone reset": Command(
        "clone.lifecycle.reset",
        "clone.change:ResetView,ResetPlanView",
        evidence=OF_CLONE,
        examples=("test --plan", "test"),
    ),
    "clone extend": Command("clone.lifecycle.extend", _CHANGED, evidence=OF_CLONE, examples=("test --ttl 8h",)),
    "clone protect": Command("clone.lifecycle.protect", _CHANGED, evidence=OF_CLONE, examples=("test --for 2d",)),
    "clone rename": Command("clone.lifecycle.rename", _CHANGED, evidence=OF_CLONE, examples=("test demo",)),
    "clone heartbeat": Command("clone.lifecycle.send_heartbeat", _CHANGED, examples=("test --while 4711",)),
    "clone keep": Command("clone.lifecycle.keep", "clone.change:ResetView,ChangedView", examples=("test",)),
    "clone beat": Command("clone.lifecycle.send_heartbeat", hidden=True),
    "clone hold": Command("clone.lifecycle.keep", hidden=True),
    "clone commit": Command(
        "clone.lifecycle.commit", "clone.change:CommittedView,IntentionView", evidence=OF_CLONE, examples=("test",)
    ),
    "clone detach": Command(
        "clone.lifecycle.detach",
        "clone.change:DetachedView,DetachPlanView",
        evidence=OF_CLONE,
        examples=("test --plan",),
    ),
    "clone destroy": Command(
        "clone.lifecycle.destroy",
        "clone.change:DestroyedView,DestroyPlanView",
        evidence=OF_CLONE,
        examples=("test --plan", "test"),
    ),
    "clone upgrade-test": Command(
        "clone.rehearsal.upgrade_test",
        "clone.migration:RehearsalView",
        evidence=OF_INSTANCE,
        examples=("main --binary /opt/mysql-8.4/bin/mysqld",),
    ),
    "clone branch": Group("Named lines of commits of a clone."),
    "clone branch create": Command(
        "clone.branch.create",
        "clone.branches:BranchesView clone.change:IntentionView",
        evidence=OF_CLONE,
        examples=("test feature",),
    ),
    "clone branch switch": Command(
        "clone.branch.switch",
        "clone.branches:SwitchedView clone.change:IntentionView",
        evidence=OF_CLONE,
        examples=("test feature",),
    ),
    "clone branch list": Command("clone.branch.list_branches", "clone.branches:BranchesView", examples=("test",)),
    "clone branch log": Command("clone.branch.log", "clone.branches:BranchLogView", examples=("test",)),
    "clone branch diff": Command(
        "clone.branch.diff", "clone.branches:BranchDifferenceView", examples=("test main feature",)
    ),
    "clone branch delete": Command(
        "clone.branch.delete",
        "clone.branches:BranchesView clone.change:IntentionView",
        evidence=OF_CLONE,
        examples=("test feature",),
    ),
    "vm": Group("Clone virtual machines on zvols.", Heading.CLONES),
    "vm clone": Command(
        "vm.clone",
        "machines:MachinesMadeView,MachinesPlanView",
        evidence=OF_HOST,
        examples=("web --name-template web-{n} --count 3 --plan",),
    ),
    "vm list": Command("vm.list_machines", "machines:MachinesView", examples=("",)),
    "vm start": Command("vm.start", _MACHINE, evidence=OF_HOST, examples=("web-1",)),
    "vm stop": Command("vm.stop", _MACHINE, evidence=OF_HOST, examples=("web-1",)),
    "vm reset": Command("vm.reset", _MACHINE, evidence=OF_HOST, examples=("web-1",)),
    "vm extend": Command("vm.extend", "machines:MachineChangedView", evidence=OF_HOST, examples=("web-1 --ttl 8h",)),
    "vm protect": Command("vm.protect", "machines:MachineChangedView", evidence=OF_HOST, examples=("web-1 --for 2d",)),
    "vm destroy": Command(
        "vm.destroy",
        "machines:MachineDestroyedView,MachineDestroyPlanView",
        evidence=OF_HOST,
        examples=("web-1 --plan",),
    ),
    "vm base": Group("Create, list and destroy bases."),
    "vm base create": Command(
        "vm.create", "machines:BaseCreatedView,BasePlanView", evidence=OF_HOST, examples=("web --from-domain web",)
    ),
    "vm base list": Command("vm.list_bases", "machines:BasesView", examples=("",)),
    "vm base destroy": Command(
        "vm.destroy_base", "machines:BaseDestroyedView,BaseDestroyPlanView", evidence=OF_HOST, examples=("web --plan",)
    ),
    "token": Group("Create and revoke tokens of `zsnapdb serve`, and show the keys of issuers.", Heading.CLONES),
    "token create": Command(
        "serve.create_token",
        "tokens:NewTokenView",
        evidence=OF_HOST,
        examples=("--for user:ann@example.org --expires 30d",),
    ),
    "token list": Command("serve.list_tokens", "tokens:TokensView", examples=("",)),
    "token revoke": Command("serve.revoke_token", "tokens:RevokedTokenView", evidence=OF_HOST, examples=("0123abcd",)),
    "token keys": Command("serve.issuer_keys", "tokens:IssuerKeysView", examples=("corporate",)),
    "token exchange": Command("serve.exchange_code", hidden=True),
    "report": Group("Show and check the evidence of actions.", Heading.REPOSITORY, shows_help=False),
    "report show": Command(
        "report.report_show",
        "repository.evidence:EvidenceReportView",
        examples=("main --from 2026-11-01 --to 2026-11-30",),
    ),
    "report records": Command(
        "report.report_records", "repository.evidence:EvidencePageView", examples=("main --most 20",)
    ),
    "report verify": Command("report.report_verify", "repository.evidence:EvidenceCheckView", examples=("main",)),
    "agent": Group("Run the scheduled jobs of this host.", Heading.HOST, run="agent.agent", shows_help=False),
    "agent status": Command("agent.agent_status", "agent:AgentView", examples=("",)),
    "agent run": Command("agent.agent_run", "agent:AgentRunView", examples=("drill main",)),
    "agent pause": Command(
        "agent.agent_pause", "agent:PauseView", evidence=OF_INSTANCE, examples=('main --for 2h --reason "maintenance"',)
    ),
    "key": Group("Generate and show the keys of repositories.", Heading.REPOSITORY),
    "key generate": Command(
        "repository.generate_key",
        "repository.init:KeysView,KeysPlanView",
        examples=("--identity identity --signing-key signing-key",),
    ),
    "key show": Command("repository.show_keys", "repository.init:KeysView", examples=("",)),
    "config": Group("Check and show the configuration.", Heading.HOST),
    "config check": Command("config_commands.check", "setup:ConfigurationView", examples=("",)),
    "config show": Command(
        "config_commands.show_settings", "setup:EffectiveConfigurationView", examples=("", "instance.main.lock")
    ),
    "notify": Group("Notifications to people and services.", Heading.HOST, shows_help=False),
    "notify test": Command("config_commands.notify_test", "agent:NotifiedView", examples=("", "ops")),
    "notify failed": Command("config_commands.notify_failed", "agent:NotifiedView", examples=("zsnapdb-backup@main",)),
}
COMMANDS: Mapping[str, Command | Group] = {
    words: replace(one, examples=tuple(f"{words} {rest}".rstrip() for rest in one.examples))
    if isinstance(one, Command)
    else one
    for words, one in _DECLARED.items()
}
"""Each command and group by its words, in the order of the help. The examples are complete command lines."""
