"""Results as text."""

from __future__ import annotations

from collections.abc import Sequence

from zsnapdb.config import Settings
from zsnapdb.jobs.backup.run import BackupPlan, BackupResult
from zsnapdb.jobs.doctor import Diagnosis
from zsnapdb.jobs.repository.inventory import Detail, Inventory, InventoryEntry
from zsnapdb.planning.backup.fitness import FitnessFinding, Severity
from zsnapdb.planning.backup.resume import ResumeDecision
from zsnapdb.report.units import size, table
from zsnapdb.repository.manifest import ChannelPart


def _kind(is_full: bool) -> str:
    return "full" if is_full else "incremental"


def backup(result: BackupResult) -> str:
    """A finished backup."""
    m = result.manifest
    position = m.position.position(m.server.flavour)
    return "\n".join(
        [
            f"backup {m.backup_id} of {m.instance} is in the repository",
            f"  kind      {_kind(m.is_full)}",
            f"  position  {position.describe()}",
            f"  lock      {m.lock.strategy}, held {m.lock.held_ms:.1f} ms",
            f"  stream    {size(m.plain_size)}, stored {size(m.stored_size)} in {result.send_seconds:.1f} s",
            *(f"  before    {done.backup_id}, which had been interrupted, was finished" for done in result.continued),
            *(f"  warning   {text}" for text in result.warnings),
        ]
    )


_FATES = {
    ResumeDecision.FINISH: "settle interrupted backup",
    ResumeDecision.CONTINUE: "continue interrupted backup",
    ResumeDecision.GIVE_UP: "give up interrupted backup",
    ResumeDecision.LEAVE: "leave what is left of backup",
}


def backup_plan(plan: BackupPlan) -> str:
    """What a backup would do: what was found, each path with its volume, then the steps."""
    seen = plan.observed
    lines = findings(seen.findings)
    lines.append("")
    lines.append(table(("PATH", "SETTING", "VOLUME", "DATASET"), _placed(plan)))
    lines.append("")
    steps = [f"{_FATES[item.judgement.fate]} {item.backup_id}: {item.judgement.text}" for item in plan.interrupted]
    steps += [f"run hook {hook}" for hook in plan.hooks if "(before" in hook]
    steps.append(f"lock: {seen.choice.describe()}; at most {plan.deadline:g} s")
    steps += [f"run hook {hook}" for hook in plan.hooks if "(locked" in hook]
    steps.append(
        f"snapshot {', '.join(dataset for _, dataset in sorted(seen.volumes.items()))} in one request, then unlock"
    )
    steps += [f"run hook {hook}" for hook in plan.hooks if "(after" in hook]
    steps.append(f"read the position from the snapshot's own binlog; it must contain {seen.position.describe()}")
    steps.append(f"send {_kind(plan.base.base is None)}: {'; '.join(map(str, plan.base.reasons))}")
    return "\n".join([*lines, *(f"{number}. {step}" for number, step in enumerate(steps, 1))])


def _placed(plan: BackupPlan) -> list[tuple[str, ...]]:
    """Return a row per path the server writes; settings that name the same path share one."""
    settings: dict[str, list[str]] = {}
    for item in plan.observed.paths:
        settings.setdefault(item.path, []).append(item.what)
    where = plan.observed.placement.volume_of
    return [
        (path, ", ".join(names), where[path], plan.observed.volumes[where[path]])
        for path, names in sorted(settings.items())
    ]


def findings(found: Sequence[FitnessFinding]) -> list[str]:
    """A line per check, and the hint under one that has one."""
    lines = []
    for item in found:
        lines.append(f"{item.severity:<8} {item.what:<15} {item.detail}")
        if item.hint:
            lines.append(f"{'':<8} {'':<15} hint: {item.hint}")
    return lines


def diagnoses(found: Sequence[Diagnosis]) -> str:
    """What the doctor found, an instance after the other, each with its verdict."""
    verdicts = {
        Severity.OK: "fit",
        Severity.WARNING: "fit, with warnings",
        Severity.UNFIT: "unfit: a backup would be refused",
    }
    return "\n\n".join("\n".join([f"instance {d.instance}", *findings(d.findings), verdicts[d.worst]]) for d in found)


def inventory(found: Inventory) -> str:
    """The backups of an instance."""
    rows = [
        (
            e.manifest.backup_id,
            _kind(e.manifest.is_full),
            size(e.manifest.plain_size),
            size(e.manifest.stored_size),
            "yes" if e.is_local else "no",
            _short(e),
        )
        for e in found.entries
    ]
    lines = [table(("BACKUP", "KIND", "STREAM", "STORED", "LOCAL", "POSITION"), rows)]
    lines += [
        f"unfinished: {u.backup_id}, begun on {u.host} at {u.started}; the next `zsnapdb backup` there continues it"
        for u in found.unfinished
    ]
    return "\n".join(lines)


def _short(entry: InventoryEntry) -> str:
    position = entry.manifest.position
    return f"{position.binlog_file}:{position.binlog_offset}" if position.binlog_file else "-"


def detail(found: Detail) -> str:
    """One backup."""
    m = found.entry.manifest
    lines = [
        (
            f"backup    {m.backup_id} of {m.instance}, {_kind(m.is_full)}, made {m.created:%Y-%m-%d %H:%M:%S} UTC by"
            f" zsnapdb {m.tool_version}"
        ),
        f"server    {m.server.flavour} {m.server.version}",
        f"position  {m.position.position(m.server.flavour).describe()} ({m.position.source})",
        f"lock      {m.lock.strategy}, held {m.lock.held_ms:.1f} ms: {m.lock.reason}",
        *(f"source    {_channel(channel)}" for channel in m.channels),
        f"local     {'yes, can be cloned' if found.entry.is_local else 'no, only in the repository'}",
        f"restores  from {' -> '.join(link.backup_id for link in found.chain)}",
    ]
    rows = [
        (
            v.role,
            v.dataset,
            str(v.guid),
            str(v.from_guid or "-"),
            size(v.plain_size),
            size(v.stored_size),
            str(v.chunk_count),
        )
        for v in m.volumes
    ]
    return "\n".join(lines) + "\n" + table(("VOLUME", "DATASET", "GUID", "FROM", "STREAM", "STORED", "CHUNKS"), rows)


def _channel(channel: ChannelPart) -> str:
    where = f"{channel.binlog_file}:{channel.binlog_offset}" if channel.binlog_file else "(not started)"
    exact = "exactly" if channel.exact else "about"
    return f"{channel.name or 'default'}: {exact} {where} of {channel.host}:{channel.port}" + (
        f" {channel.gtids}" if channel.gtids else ""
    )


def configuration(settings: Settings) -> str:
    """What a configuration file names."""
    lines = [
        f"instance {name}: {found.user} at {found.socket or found.host}, to repository {found.repository}"
        for name, found in settings.instance.items()
    ]
    return "\n".join(["the configuration is well-formed", *lines])
