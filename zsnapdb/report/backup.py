"""Views of backups, their sources, local snapshot sets, and their plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.base.quantities import size
from zsnapdb.documents import backup as documents
from zsnapdb.planning.backup.resume import ResumeDecision
from zsnapdb.report.view import Part, Table, TabularView, View, finding_lines, table
from zsnapdb.repository.manifest import SourcePart
from zsnapdb.repository.manifest_source import BoundPart, ChannelPart, LockPart, MachineSourcePart, ServerSourcePart

if TYPE_CHECKING:
    from zsnapdb.jobs.backup.local_snapshot import LocalSnapshotPlan, LocalSnapshotResult
    from zsnapdb.jobs.backup.plan import BackupPlan
    from zsnapdb.jobs.backup.preflight import Observed
    from zsnapdb.jobs.backup.run import BackupResult
    from zsnapdb.planning.repository.local_snapshot_sets import LocalSet


def _machine_lines(source: MachineSourcePart) -> list[str]:
    freeze, server = source.freeze, source.server
    lines = [f"machine   {source.domain} ({source.uuid})", f"grade     {source.grade}: {source.reason}"]
    if freeze is not None:
        listed = ", ".join(freeze.mount_points) or "not listed"
        lines.append(f"frozen    {freeze.count} file systems, {freeze.held_ms:.1f} ms; mounted: {listed}")
    if server is not None:
        lines.append(f"server    {server.flavour} {server.version}, lock {server.lock}, held {server.held_ms:.1f} ms")
        after = _bound(server.after) if server.after is not None else "an unknown position"
        lines.append(f"position  between {_bound(server.before)} and {after}")
    return lines


def _bound(bound: BoundPart) -> str:
    at = f"{bound.binlog_file}:{bound.binlog_offset}" if bound.binlog_file else "no binlog"
    return f"{at} {bound.gtids}" if bound.gtids else at


def result_lines(source: SourcePart) -> list[str]:
    """Return the lines about the source for the result of a backup."""
    if isinstance(source, MachineSourcePart):
        return [f"  {line}" for line in _machine_lines(source)]
    if not isinstance(source, ServerSourcePart):
        return [f"  source    {source.kind}"]
    return [
        f"  position  {source.position.position(source.server.flavour).describe()}",
        f"  lock      {_lock(source.lock)}",
    ]


def detail_lines(source: SourcePart) -> list[str]:
    """Return the lines about the source for `zsnapdb show`."""
    if isinstance(source, MachineSourcePart):
        return _machine_lines(source)
    if not isinstance(source, ServerSourcePart):
        return [f"source    {source.kind}"]
    server, position, lock = source.server, source.position, source.lock
    return [
        f"server    {server.flavour} {server.version}",
        f"position  {position.position(server.flavour).describe()} ({position.source})",
        f"lock      {_lock(lock)}: {lock.reason}",
        *(f"source    {_channel(channel)}" for channel in source.channels),
        *(f"keys      in {path} of the server" for path in server.key_files),
        *(f"lacks     {sentence}" for sentence in source.rows_not_restored),
        *(f"unlogged  {sentence}" for sentence in server.unlogged),
    ]


def _lock(lock: LockPart) -> str:
    """Return a text about how long the lock was held and how many statements waited for it."""
    if lock.waited is None:
        return f"{lock.strategy}, held {lock.held_ms:.1f} ms"
    return f"{lock.strategy}, held {lock.held_ms:.1f} ms; {lock.waited} waited"


def position_column(source: SourcePart) -> str:
    """Return the position as text for a table cell: binlog and offset, or a dash if the position is unknown."""
    if not isinstance(source, ServerSourcePart) or not source.position.binlog_file:
        return "-"
    return f"{source.position.binlog_file}:{source.position.binlog_offset}"


def _channel(channel: ChannelPart) -> str:
    where = f"{channel.binlog_file}:{channel.binlog_offset}" if channel.binlog_file else "(not started)"
    exact = "exactly" if channel.exact else "about"
    return f"{channel.name or 'default'}: {exact} {where} of {channel.host}:{channel.port}" + (
        f" {channel.gtids}" if channel.gtids else ""
    )


def kind_of(is_full: bool) -> str:
    """Return the word for the kind of a backup."""
    return "full" if is_full else "incremental"


class BackupView(View, kind="backup", document=documents.BackupDocument, read_from="result"):
    """A finished backup."""

    result: BackupResult

    def text(self) -> str:
        result = self.result
        m = result.manifest
        return "\n".join(
            [
                f"backup {m.backup_id} of {m.instance} is in the repository",
                f"  kind      {kind_of(m.is_full)}",
                *result_lines(m.source),
                f"  stream    {size(m.plain_size)}, stored {size(m.stored_size)}{_duration(result)}",
                *(f"  before    the interrupted backup {done.backup_id} was finished" for done in result.continued),
                *(f"  warning   {text}" for text in result.warnings),
            ]
        )


def _duration(result: BackupResult) -> str:
    return (
        f" by the run {result.manifest.run_id or 'of an earlier version'}"
        if result.is_repeat
        else f" in {result.send_seconds:.1f} s"
    )


_DECISIONS = {
    ResumeDecision.FINISH: "settle interrupted backup",
    ResumeDecision.CONTINUE: "continue interrupted backup",
    ResumeDecision.GIVE_UP: "give up interrupted backup",
    ResumeDecision.LEAVE: "leave the leftovers of backup",
}


class BackupPlanView(View, kind="backup-plan", document=documents.BackupPlanDocument, read_from="plan"):
    """The plan of a backup: the findings, each path with its volume, and the steps."""

    plan: BackupPlan

    def text(self) -> str:
        plan = self.plan
        observed, server = plan.observed, plan.server
        lines = finding_lines(observed.findings)
        lines.append("")
        if server is not None:
            lines.append(table(("PATH", "SETTING", "VOLUME", "DATASET"), _path_rows(server)))
            lines.append("")
        steps = [
            f"{_DECISIONS[item.judgement.decision]} {item.backup_id}: {item.judgement.text}"
            for item in plan.interrupted
        ]
        steps += [f"run hook {hook}" for hook in plan.hooks if "(before" in hook]
        if server is not None:
            steps.append(f"lock: {server.choice.describe()}; at most {plan.deadline:g} s")
        steps += [f"run hook {hook}" for hook in plan.hooks if "(locked" in hook]
        datasets = ", ".join(dataset for _, dataset in sorted(observed.volumes.items()))
        steps.append(f"snapshot {datasets} in one request, then unlock")
        steps += [f"run hook {hook}" for hook in plan.hooks if "(after" in hook]
        if server is not None:
            steps.append(
                f"read the position from the snapshot's own binlog; it must contain {server.position.describe()}"
            )
        steps.append(f"send {kind_of(plan.base.base is None)}: {'; '.join(map(str, plan.base.reasons))}")
        steps[-1] += f"; in {plan.form.form} streams: {plan.form.reason}"
        steps += [f"run hook {hook}" for hook in plan.hooks if "(done" in hook]
        return "\n".join([*lines, *(f"{number}. {step}" for number, step in enumerate(steps, 1))])


def _path_rows(observed: Observed) -> list[tuple[str, ...]]:
    """Return one row for each path that the server writes. Settings with the same path share a row."""
    settings: dict[str, list[str]] = {}
    for item in observed.paths:
        settings.setdefault(item.path, []).append(item.what)
    where = observed.placement.volume_of
    return [
        (path, ", ".join(names), where[path], observed.volumes[where[path]]) for path, names in sorted(settings.items())
    ]


class LocalSnapshotView(View, kind="snapshot", document=documents.LocalSnapshotDocument, read_from="result"):
    """A new local snapshot set."""

    result: LocalSnapshotResult

    def text(self) -> str:
        result = self.result
        return "\n".join(
            [
                f"snapshot set {result.backup_id} of {result.instance} is on this host, in no repository",
                f"  position  {result.position or 'none'}",
                f"  taken     in {result.seconds:.2f} s",
                *(f"  expired   {backup_id} was destroyed" for backup_id in result.expired),
                *(f"  warning   {text}" for text in result.warnings),
            ]
        )


class LocalSnapshotPlanView(View, kind="snapshot-plan", document=documents.LocalSnapshotPlanDocument, read_from="plan"):
    """The plan of `zsnapdb snapshot`."""

    plan: LocalSnapshotPlan

    def text(self) -> str:
        rows = [("keep" if d.keep else "destroy", d.backup_id, "; ".join(d.reasons)) for d in self.plan.decisions]
        volumes = ", ".join(sorted(self.plan.observed.volumes.values()))
        lines = [*finding_lines(self.plan.observed.findings), "", f"snapshot {volumes} in one request"]
        return "\n".join([*lines, *([table(("", "SET", "WHY"), rows)] if rows else [])])


class LocalSetsView(TabularView, kind="local-sets", document=documents.LocalSetsDocument):
    """The snapshot sets on this host."""

    sets: Sequence[LocalSet]

    def parts(self) -> Sequence[Part]:
        rows = [
            (one.backup_id, one.state, size(one.used), one.position or "-", "; ".join(one.users) or "-")
            for one in self.sets
        ]
        return [Table(("SET", "STATE", "OWN SPACE", "POSITION", "NEEDED BY"), rows, "no snapshot set is on this host")]
