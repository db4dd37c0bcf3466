"""Views of a new clone, of its plan, and of a prepared snapshot set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.clone.masking import planned_lines
from zsnapdb.planning.clone.preparation import MaskingChoice, MaskingWay
from zsnapdb.report.clone.fields import CloneFields, clone_fields, port
from zsnapdb.report.clone.masking import MaskingFields, masking_fields, masking_lines
from zsnapdb.report.view import View

if TYPE_CHECKING:
    from zsnapdb.jobs.clone.clone_info import CloneInfo
    from zsnapdb.jobs.clone.create_plan import ClonePlan
    from zsnapdb.jobs.clone.created import Created
    from zsnapdb.jobs.clone.prepare import PreparedSet
    from zsnapdb.jobs.clone.request import CloneRequest
    from zsnapdb.jobs.clone.reusable_sets import ReusableSet


_WAYS = {
    MaskingWay.PREPARED: "not now",
    MaskingWay.PREPARES: "once, for this clone, its resets and all later clones of the set",
    MaskingWay.ALONE: "this clone alone",
}


class CreationSecondsFields(TypedDict):
    """How long each phase of making a clone took."""

    source: float
    clone: float
    identity: float
    start: float


class MaskingWayFields(TypedDict):
    """How a clone is masked (none, prepared, prepares, alone), and why in this way."""

    way: str
    reason: str


class CreatedDocument(TypedDict):
    """A new clone. Its user and password are null if its server was not started, `masked_how` if it was made before."""

    clone: CloneFields
    user: str | None
    password: str | None
    seconds: CreationSecondsFields
    masking: MaskingFields | None
    masked_how: MaskingWayFields | None
    of_pool: bool


class HandOutPlanDocument(TypedDict):
    """Which clone would come out of the pool."""

    name: str
    slot: CloneFields


class ClonePlanDocument(TypedDict):
    """What making a clone would do. `backup_id` is null if the snapshot set is taken then."""

    name: str
    instance: str
    source: str
    backup_id: str | None
    snapshots: dict[str, str]
    receives: list[str]
    prepared: bool
    replays: int
    datasets: dict[str, str]
    mount: str
    port: int
    bind_address: str
    expires: str
    owner: str
    profile: str
    starts: bool
    masks: bool
    masked_source: bool
    masked_how: MaskingWayFields
    notes: list[str]


class PreparedDocument(TypedDict):
    """A prepared snapshot set."""

    backup_id: str
    snapshots: dict[str, str]
    masked: bool
    masking: MaskingFields | None


@dataclass(frozen=True)
class CreatedView(View):
    """A new clone. `is_secret`: the password is not shown, as in what is recorded of the run."""

    result: Created
    is_secret: bool = False
    kind: ClassVar[str] = "clone"

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
            lines.append(f"  client    --defaults-file={info.client_file}")
        if result.login and not self.is_secret:
            lines.append(f"  dsn       {result.login.dsn}")
        lines += [f"  took      {took.source + took.clone + took.identity:.1f} s to clone, {took.start:.1f} s to start"]
        if result.masked is not None and result.masked.way is not MaskingWay.NONE:
            lines.append(f"  masking   {_WAYS[result.masked.way]}: {result.masked.reason}")
        return "\n".join(lines + (masking_lines(result.masking) if result.masking is not None else []))

    def fields(self) -> CreatedDocument:
        result = self.result
        password = result.password.get_secret_value() if result.password and not self.is_secret else None
        masked = masking_fields(result.masking) if result.masking is not None else None
        user = result.login.user if result.login else None
        return {
            "clone": clone_fields(result.info),
            "user": user,
            "password": password,
            "seconds": _seconds(result),
            "masking": masked,
            "masked_how": _way_fields(result.masked) if result.masked is not None else None,
            "of_pool": result.is_of_pool,
        }


@dataclass(frozen=True)
class HandOutPlanView(View):
    """What handing a clone of the pool out would do."""

    slot: CloneInfo
    request: CloneRequest
    kind: ClassVar[str] = "clone-hand-out-plan"

    def text(self) -> str:
        slot = self.slot
        name = self.request.name or slot.label
        return (
            f"clone {name} of {slot.instance} comes out of the pool: {slot.label}, data as of {slot.backup_id}, port"
            f" {slot.port}; with --fresh one is made now"
        )

    def fields(self) -> HandOutPlanDocument:
        return {"name": self.request.name or self.slot.label, "slot": clone_fields(self.slot)}


def _seconds(result: Created) -> CreationSecondsFields:
    took = result.seconds
    return {
        "source": round(took.source, 3),
        "clone": round(took.clone, 3),
        "identity": round(took.identity, 3),
        "start": round(took.start, 3),
    }


def _way_fields(masking: MaskingChoice) -> MaskingWayFields:
    return {"way": masking.way.value, "reason": masking.reason}


def _masking_plan(plan: ClonePlan) -> list[str]:
    """Return what the plan does to mask the clone."""
    way, reason = plan.masking.way, plan.masking.reason
    if way is MaskingWay.NONE:
        return []
    if way is MaskingWay.PREPARED:
        return [f"  {reason}"]
    steps = [f"  {line}" for line in planned_lines(plan.origin.flavour)]
    if way is MaskingWay.PREPARES:
        return [f"  first prepare the set, as `zsnapdb clone prepare` does: {reason}", *steps]
    if not plan.starts:
        return [f"  mask the clone at its first start: {reason}"]
    return [f"  mask the clone; nobody can connect to it during that time: {reason}", *steps]


@dataclass(frozen=True)
class ClonePlanView(View):
    """What making a clone would do."""

    plan: ClonePlan
    kind: ClassVar[str] = "clone-plan"

    def text(self) -> str:
        plan = self.plan
        lines = [
            (
                f"clone {plan.name} of the snapshot set {plan.set_id or '(taken now)'} of {plan.instance}, on port"
                f" {plan.port}"
            )
        ]
        if plan.kind == "live":
            lines.append("  take a snapshot set of the running server, under the least lock that is enough")
        lines += [f"  receive {backup_id} from the repository, once" for backup_id in plan.receives]
        if plan.kind == "point":
            lines.append(f"  replay {plan.replays} batches of archived binlogs on the backup, once")
        for role, dataset in sorted(plan.layout.datasets.items()):
            lines.append(f"  zfs clone {plan.snapshots.get(role, f'the snapshot of {role}')} to {dataset}")
        lines += _masking_plan(plan)
        is_prepared = plan.is_prepared or plan.masking.way is MaskingWay.PREPARES
        recovery = "no recovery: it was shut down cleanly" if is_prepared else "with crash recovery"
        start = f"  start and check {plan.origin.describe()} with a new identity at {plan.copy.root} ({recovery})"
        lines.append(
            start if plan.starts else "  leave its server stopped: `zsnapdb clone start` starts and checks the server"
        )
        lines.append(
            f"  listen on {plan.bind_address}:{plan.port}; lease until {stamp(plan.lease.expires)}, owner {plan.owner}"
            + (f", a heartbeat each {plan.heartbeat} s" if plan.heartbeat else "")
        )
        return "\n".join([*lines, *(f"  note      {note}" for note in plan.notes)])

    def fields(self) -> ClonePlanDocument:
        plan = self.plan
        return {
            "name": plan.name,
            "instance": plan.instance,
            "source": plan.kind.value,
            "backup_id": plan.set_id or None,
            "snapshots": dict(plan.snapshots),
            "receives": list(plan.receives),
            "prepared": plan.is_prepared,
            "replays": plan.replays,
            "datasets": dict(plan.layout.datasets),
            "mount": str(plan.copy.root),
            "port": plan.port,
            "bind_address": plan.bind_address,
            "expires": stamp(plan.lease.expires),
            "owner": plan.owner,
            "profile": plan.profile.value,
            "starts": plan.starts,
            "masks": plan.masks,
            "masked_source": bool(plan.rules),
            "masked_how": _way_fields(plan.masking),
            "notes": list(plan.notes),
        }


class RemovedFormsDocument(TypedDict):
    """Prepared forms that are removed, or would be (`done`)."""

    removed: list[str]
    done: bool


@dataclass(frozen=True)
class RemovedFormsView(View):
    """Prepared forms that are removed, or would be."""

    forms: tuple[ReusableSet, ...]
    is_done: bool
    kind: ClassVar[str] = "clone-prepared-removed"

    def text(self) -> str:
        doing = "was destroyed" if self.is_done else "is destroyed"
        masked = [("masked " if form.rules else "") + "form" for form in self.forms]
        return "\n".join(
            f"the {what} {form.anchor} of set {form.set_id} {doing}"
            for what, form in zip(masked, self.forms, strict=True)
        )

    def fields(self) -> RemovedFormsDocument:
        return {"removed": [form.anchor for form in self.forms], "done": self.is_done}


@dataclass(frozen=True)
class PreparedView(View):
    """A snapshot set that was recovered, masked where clones are, and shut down cleanly."""

    prepared: PreparedSet
    kind: ClassVar[str] = "clone-prepared"

    def text(self) -> str:
        source, report = self.prepared.source, self.prepared.masking
        needs = "neither recovery nor masking" if source.rules else "no recovery"
        lines = [f"snapshot set {source.set.backup_id} is prepared: its clones need {needs}"]
        return "\n".join(lines + (masking_lines(report) if report is not None else []))

    def fields(self) -> PreparedDocument:
        source, report = self.prepared.source, self.prepared.masking
        return {
            "backup_id": source.set.backup_id,
            "snapshots": {role: snapshot.full_name for role, snapshot in source.set.snapshots.items()},
            "masked": bool(source.rules),
            "masking": masking_fields(report) if report is not None else None,
        }
