"""Views of new clones, clone sets, prepared snapshot sets and filled pools, and of their plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zsnapdb.documents import clone as documents
from zsnapdb.documents.clone import PoolDocument
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.pool_filling import FilledPool
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.clone.masking import MaskingWay, planned_lines
from zsnapdb.planning.clone.pool import PoolPlan, PoolSlot
from zsnapdb.report.clone.list import port, reach
from zsnapdb.report.view import View, table

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.cached_sets import ReusableSet
    from zsnapdb.jobs.clone.clone_info import CloneInfo
    from zsnapdb.jobs.clone.create_plan import ClonePlan
    from zsnapdb.jobs.clone.masking import MaskingReport
    from zsnapdb.jobs.clone.request import CloneRequest, Created
    from zsnapdb.jobs.clone.set_preparation import PreparedSet
    from zsnapdb.jobs.clone.topology import CloneSet, SetPlan

_WAYS = {
    MaskingWay.PREPARED: "not now",
    MaskingWay.PREPARES: "once, for this clone, its resets and all later clones of the set",
    MaskingWay.ALONE: "this clone alone",
}


class CreatedView(View, kind="clone", document=documents.CreatedDocument):
    """A new clone. If `is_secret` is set, the password is not shown, for example in the record of a run."""

    result: Created
    is_secret: bool = False

    @property
    def password(self) -> str | None:
        """The password of the clone's user (None if not shown)."""
        password = self.result.password
        return password.get_secret_value() if password and not self.is_secret else None

    def text(self) -> str:
        result = self.result
        info, took = result.info, result.seconds
        lines = [
            (
                f"clone {info.label} of {info.instance} runs on {port(info)}"
                + (f", out of the pool as {info.id}" if result.is_of_pool else "")
                if result.login
                else f"clone {info.label} of {info.instance} is made; its server is not started"
            ),
            f"  data      as of {info.backup_id}: {info.position}",
            f"  dataset   {info.top}, mounted at {info.mount}",
            f"  lease     until {stamp(info.lease.expires)}, owner {info.owner}"
            + (f", a heartbeat each {info.lease.heartbeat.every} s" if info.lease.heartbeat else ""),
        ]
        if result.login:
            lines.append(f"  connect   zsnapdb clone connect {info.label}")
            lines.append(f"  reach     {reach(info.label, info)}")
        if result.login and not self.is_secret:
            lines.append(f"  dsn       {result.login.dsn}")
        lines += [f"  took      {took.source + took.clone + took.identity:.1f} s to clone, {took.start:.1f} s to start"]
        if result.masked is not None and result.masked.way is not MaskingWay.NONE:
            lines.append(f"  masking   {_WAYS[result.masked.way]}: {result.masked.reason}")
        return "\n".join(lines + (masking_lines(result.masking) if result.masking is not None else []))


class HandOutPlanView(View, kind="clone-hand-out-plan", document=documents.HandOutPlanDocument):
    """The plan to hand out a clone of the pool."""

    slot: CloneInfo
    request: CloneRequest

    @property
    def name(self) -> str:
        return self.request.name or self.slot.label

    def text(self) -> str:
        slot = self.slot
        return (
            f"clone {self.name} of {slot.instance} comes out of the pool: {slot.label}, data as of {slot.backup_id},"
            f" port {slot.port}; with --fresh one is made now"
        )


def _masking_plan(plan: ClonePlan) -> list[str]:
    way, reason = plan.made_from.masking.way, plan.made_from.masking.reason
    if way is MaskingWay.NONE:
        return []
    if way is MaskingWay.PREPARED:
        return [f"  {reason}"]
    steps = [f"  {line}" for line in planned_lines(plan.origin.flavour)]
    if way is MaskingWay.PREPARES:
        return [f"  first prepare the set, as `zsnapdb clone prepare` does: {reason}", *steps]
    if not plan.request.starts:
        return [f"  mask the clone at its first start: {reason}"]
    return [f"  mask the clone; nobody can connect to it during that time: {reason}", *steps]


class ClonePlanView(View, kind="clone-plan", document=documents.ClonePlanDocument, read_from="plan"):
    """The plan of a new clone."""

    plan: ClonePlan

    def text(self) -> str:
        plan = self.plan
        lines = [
            (
                f"clone {plan.name} of the snapshot set {plan.made_from.set_id or '(taken now)'} of {plan.instance}, on"
                f" port {plan.port}"
            )
        ]
        if plan.made_from.kind == "live":
            lines.append("  take a snapshot set of the running server, under the least lock that is enough")
        lines += [f"  receive {backup_id} from the repository, once" for backup_id in plan.made_from.receives]
        if plan.made_from.kind == "point":
            lines.append(f"  replay {plan.made_from.replays} batches of archived binlogs on the backup, once")
        for role, dataset in sorted(plan.layout.datasets.items()):
            lines.append(f"  zfs clone {plan.made_from.snapshots.get(role, f'the snapshot of {role}')} to {dataset}")
        lines += _masking_plan(plan)
        is_prepared = plan.made_from.is_prepared or plan.made_from.masking.way is MaskingWay.PREPARES
        recovery = "no recovery: it was shut down cleanly" if is_prepared else "with crash recovery"
        start = f"  start and check {plan.origin.describe()} with a new identity at {plan.copy.root} ({recovery})"
        lines.append(
            start
            if plan.request.starts
            else "  leave its server stopped: `zsnapdb clone start` starts and checks the server"
        )
        lines.append(
            f"  listen on {plan.bind_address}:{plan.port}; lease until {stamp(plan.lease.expires)}, owner {plan.owner}"
            + (f", a heartbeat each {plan.lease.heartbeat.every} s" if plan.lease.heartbeat else "")
        )
        return "\n".join([*lines, *(f"  note      {note}" for note in plan.notes)])


class RemovedFormsView(View, kind="clone-prepared-removed", document=documents.RemovedFormsDocument):
    """Prepared or received sets that were removed (if `is_done` is set) or would be removed."""

    forms: tuple[ReusableSet, ...]
    is_done: bool

    def text(self) -> str:
        doing = "was destroyed" if self.is_done else "is destroyed"
        return "\n".join(
            f"the {'masked ' if form.rules else ''}{form.kind} set {form.anchor} of set {form.set_id} {doing}"
            for form in self.forms
        )


class PreparedView(View, kind="clone-prepared", document=documents.PreparedDocument, read_from="prepared"):
    """A snapshot set on which a server was recovered and cleanly shut down.

    If its clones must be masked, the set is masked.
    """

    prepared: PreparedSet

    def text(self) -> str:
        source, report = self.prepared.source, self.prepared.masking
        needs = "neither recovery nor masking" if source.rules else "no recovery"
        lines = [f"snapshot set {source.set.backup_id} is prepared: its clones need {needs}"]
        return "\n".join(lines + (masking_lines(report) if report is not None else []))


def masking_lines(report: MaskingReport) -> list[str]:
    """Return the lines about masking."""
    lines = [f"  masked    in {report.seconds:.1f} s, {len(report.rebuilt)} tables rebuilt"]
    for step in report.steps:
        done = "script" if step.statements is None else f"{step.statements} statements, {step.rows} rows changed"
        lines.append(f"            {step.name}: {done}, {step.seconds:.1f} s")
    return lines + [f"  remains   {where}" for where in report.remains]


class CloneSetPlanView(View, kind="clone-set-plan", document=documents.CloneSetPlanDocument, read_from="plan"):
    """The plan of a new set of clones."""

    plan: SetPlan

    def text(self) -> str:
        plan = self.plan
        parts = (
            "the first is the source of the others" if plan.topology == "replication" else "independent of one another"
        )
        return (
            f"a set of {len(plan.names)} clones, {parts}: {', '.join(plan.names)}; each is made like"
            f" the first:\n{ClonePlanView(plan.first).text()}"
        )


class CloneSetView(View, kind="clone-set", document=documents.CloneSetDocument, read_from="made"):
    """A new set of clones."""

    made: CloneSet

    def text(self) -> str:
        made = self.made
        first = made.members[0].clone.info
        lines = [
            (
                f"set {made.name}: {len(made.members)} clones of {first.instance}, as of {first.backup_id},"
                f" {made.topology}"
            )
        ]
        if made.arrival_seconds is not None:
            lines.append(f"  a row of the source arrived at every replica after {made.arrival_seconds:.2f} s")
        rows = [
            (m.clone.info.label, m.part, str(m.clone.info.port), f"zsnapdb clone connect {m.clone.info.label}")
            for m in made.members
        ]
        return "\n".join([*lines, table(("CLONE", "PART", "PORT", "CONNECT"), rows)])


def _short(plan: PoolPlan) -> list[str]:
    return [f"  no more: {plan.short}"] if plan.short else []


class PoolPlanView(View, kind="clone-pool-plan", document=PoolDocument):
    """The plan to fill a pool."""

    plan: PoolPlan
    made: None = None

    @property
    def drops(self) -> Sequence[tuple[PoolSlot, str]]:
        return self.plan.drops

    def text(self) -> str:
        plan = self.plan
        lines = [f"{len(plan.keeps)} clones wait, {len(plan.drops)} go, {plan.makes} are made"]
        lines += [f"  destroy {slot.name}: {reason}" for slot, reason in plan.drops]
        return "\n".join([*lines, *_short(plan)])


class FilledPoolView(View, kind="clone-pool", document=PoolDocument):
    """A filled pool."""

    filled: FilledPool

    @property
    def plan(self) -> PoolPlan:
        return self.filled.plan

    @property
    def made(self) -> Sequence[CloneInfo]:
        return self.filled.made

    @property
    def drops(self) -> Sequence[tuple[PoolSlot, str]]:
        return [(slot, reason) for slot, reason in self.plan.drops if slot.name in self.filled.dropped]

    def text(self) -> str:
        plan, made = self.plan, self.made
        lines = [f"{len(plan.keeps) + len(made)} clones wait, {len(self.filled.dropped)} went, {len(made)} were made"]
        lines += [f"  {slot.name} was destroyed: {reason}" for slot, reason in self.drops]
        lines += [f"  {info.name} waits: data as of {info.backup_id}, port {info.port}" for info in made]
        return "\n".join([*lines, *_short(plan)])
