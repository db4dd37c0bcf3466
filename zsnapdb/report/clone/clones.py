"""Clones as text for people and as JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from zsnapdb.jobs.clone.catalogue import CloneInfo
from zsnapdb.jobs.clone.create import ClonePlan, Created
from zsnapdb.jobs.clone.credentials import Login
from zsnapdb.jobs.clone.destroy import DestroyPlan
from zsnapdb.jobs.clone.lifecycle import Committed
from zsnapdb.jobs.clone.plans import Intention
from zsnapdb.jobs.clone.properties import ClonePhase
from zsnapdb.jobs.clone.reaper import ReapOutcome
from zsnapdb.jobs.clone.revision import DetachPlan, ResetPlan
from zsnapdb.jobs.clone.sources import CloneSource, Commit
from zsnapdb.planning.clone.lease import LeaseVerdict, stamp
from zsnapdb.report.clone.masking import masking, masking_fields
from zsnapdb.report.document import document
from zsnapdb.report.units import size, table


def created(result: Created) -> str:
    """A new clone."""
    info, took = result.info, result.seconds
    lines = [
        (
            f"clone {info.name} of {info.instance} runs on port {info.port}"
            if result.login
            else f"clone {info.name} of {info.instance} is made, not started"
        ),
        f"  data      as of {info.backup_id}: {result.position.describe()}",
        f"  dataset   {info.top}, mounted at {info.mount}",
        f"  lease     until {stamp(info.lease.expires)}, owner {info.owner}",
    ]
    if result.login:
        lines += [f"  client    --defaults-file={info.client_file}", f"  dsn       {result.login.dsn}"]
    lines += [f"  took      {took.source + took.clone + took.identity:.1f} s to clone, {took.start:.1f} s to start"]
    return "\n".join(lines + (masking(result.masking) if result.masking is not None else []))


def _seconds(result: Created) -> dict[str, float]:
    took = result.seconds
    return {
        "source": round(took.source, 3),
        "clone": round(took.clone, 3),
        "identity": round(took.identity, 3),
        "start": round(took.start, 3),
    }


def plan(plan: ClonePlan) -> str:
    """What making a clone would do."""
    lines = [
        f"clone {plan.name} of the snapshot set {plan.set_id or '(taken now)'} of {plan.instance}, on port {plan.port}"
    ]
    if plan.kind == "live":
        lines.append("  take a snapshot set of the running server, under the least lock that is enough")
    lines += [f"  receive {backup_id} from the repository, once" for backup_id in plan.receives]
    if plan.kind == "point":
        lines.append(f"  replay {plan.replays} batches of archived binlogs on it, once")
    for role, dataset in sorted(plan.layout.datasets.items()):
        lines.append(f"  zfs clone {plan.snapshots.get(role, f'the snapshot of {role}')} to {dataset}")
    lines += ["  mask it, unreachable meanwhile"] if plan.masks else []
    recovery = "already recovered, shut down cleanly" if plan.is_prepared else "after crash recovery"
    start = f"  start {plan.origin.describe()} with a new identity at {plan.copy.root} ({recovery}), and check it"
    lines.append(start if plan.starts else "  leave its server stopped: `clone start` starts and checks it")
    return "\n".join(
        [
            *lines,
            f"  listen on {plan.bind_address}:{plan.port}; lease until {stamp(plan.lease.expires)}, owner {plan.owner}",
        ]
    )


def _state(info: CloneInfo) -> str:
    if info.phase in (ClonePhase.MAKING, ClonePhase.DESTROYING, ClonePhase.CHANGING):
        return info.phase
    if info.pid is not None:
        return f"running ({info.pid})"
    return "never started" if info.phase is ClonePhase.NEW else "stopped"


def listing(found: list[CloneInfo]) -> str:
    """All clones."""
    rows = []
    for c in found:
        guarded = "yes" if c.lease.protected_until else "no"
        rows.append(
            (
                c.name,
                c.instance,
                c.backup_id,
                c.owner,
                c.created,
                stamp(c.lease.expires),
                guarded,
                str(c.port),
                _state(c),
                size(c.own_bytes),
            )
        )
    return table(
        ("CLONE", "INSTANCE", "DATA OF", "OWNER", "CREATED", "EXPIRES", "PROTECTED", "PORT", "SERVER", "OWN BYTES"),
        rows,
    )


def detail(info: CloneInfo, commits: Sequence[Commit]) -> str:
    """One clone."""
    guarded = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
    lines = [
        f"clone     {info.name} of {info.instance}, made {info.created} by {info.owner}, profile {info.profile}",
        (
            f"server    {info.origin.flavour} {info.origin.version}, {_state(info)}, {info.bind_address}:{info.port},"
            f" server_id {info.server_id}"
        ),
        f"data      as of {info.backup_id} ({info.source}): {info.position}",
        f"lease     until {stamp(info.lease.expires)}{guarded}",
        f"dataset   {info.top}, mounted at {info.mount}, {size(info.own_bytes)} of its own"
        + (", independent" if info.is_independent else ""),
    ]
    for made in commits:
        cloned = f", cloned as {', '.join(made.clones)}" if made.clones else ""
        lines.append(f"commit    {made.set.backup_id} {made.created} {made.message}{cloned}")
    return "\n".join(lines)


def changed(info: CloneInfo, what: str) -> str:
    """A clone after something was done with it."""
    guarded = f", protected until {stamp(info.lease.protected_until)}" if info.lease.protected_until else ""
    return (
        f"clone {info.name} {what}: {_state(info)}, port {info.port}, data of {info.backup_id}, lease until"
        f" {stamp(info.lease.expires)}{guarded}"
    )


def intention(found: Intention) -> str:
    """What a change would do."""
    return "\n".join(found.steps) or "nothing to do"


def destroy_plan(found: DestroyPlan | None, name: str) -> str:
    """What destroying a clone would do."""
    if found is None:
        return f"there is no clone {name}; nothing to do"
    lines = [f"end its server, process {found.info.pid}"] if found.info.pid else []
    lines += [
        f"zfs destroy {snapshot.full_name}" for commit in found.commits for snapshot in commit.set.snapshots.values()
    ]
    return "\n".join([*lines, *(f"zfs destroy {dataset}" for dataset in reversed(found.info.datasets))])


def destroyed(found: DestroyPlan | None, name: str) -> str:
    """A clone that is gone."""
    return f"there is no clone {name}" if found is None else f"clone {name} is gone: {', '.join(found.info.datasets)}"


def environment(login: Login) -> str:
    """Shell lines that make clients of this host reach the clone. With its password: for the person who asked."""
    values = {
        "MYSQL_HOST": login.host,
        "MYSQL_TCP_PORT": str(login.port),
        "MYSQL_UNIX_PORT": str(login.socket),
        "MYSQL_USER": login.user,
        "MYSQL_PWD": login.password.get_secret_value(),
        "DATABASE_URL": login.dsn,
    }
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())


def reset_plan(found: ResetPlan) -> str:
    """What a reset would do."""
    lines = [f"zfs clone {name} ({role})" for role, name in sorted(found.snapshots.items())]
    lines = lines or [f"take or receive the snapshot set {found.set_id or '(now)'} first, and clone it"]
    return "\n".join(
        [
            *lines,
            (
                f"stop clone {found.info.name}, put the new data in the place of the old, start it on port"
                f" {found.info.port} again"
            ),
        ]
    )


def detach_plan(found: DetachPlan) -> str:
    """What detaching would cost."""
    return (
        f"detaching clone {found.info.name} copies {size(found.cost)}; the pool has {size(found.available)} free. Its"
        " server is stopped meanwhile"
    )


def detached(found: DetachPlan) -> str:
    """A clone that depends on no snapshot any more."""
    return f"clone {found.info.name} is independent: {size(found.cost)} were copied; {_state(found.info)}"


def committed(result: Committed) -> str:
    """A new commit."""
    return f"commit {result.set.backup_id} of clone {result.info.name}: clone it with --from {result.set.backup_id}"


def prepared(source: CloneSource) -> str:
    """A snapshot set that was recovered and shut down cleanly."""
    return f"snapshot set {source.set.backup_id} is prepared: its clones need no recovery"


def swept(found: Sequence[ReapOutcome]) -> str:
    """What a sweep did, or would do."""
    rows = [
        (item.what, item.name, item.verdict.value, item.reason + (f"; {item.error.message}" if item.error else ""))
        for item in found
    ]
    return table(("WHAT", "NAME", "FATE", "WHY"), rows)


def _clone(c: CloneInfo) -> dict[str, Any]:
    return {
        "name": c.name,
        "instance": c.instance,
        "backup_id": c.backup_id,
        "source": c.source,
        "phase": c.phase.value,
        "port": c.port,
        "bind_address": c.bind_address,
        "server_id": c.server_id,
        "created": c.created,
        "owner": c.owner,
        "expires": stamp(c.lease.expires),
        "protected_until": stamp(c.lease.protected_until) if c.lease.protected_until else None,
        "profile": c.profile.value,
        "position": c.position,
        "datasets": list(c.datasets),
        "volumes": dict(c.volumes),
        "mount": str(c.mount),
        "client_file": str(c.client_file),
        "own_bytes": c.own_bytes,
        "independent": c.is_independent,
        "pid": c.pid,
    }


def _commit(made: Commit) -> dict[str, Any]:
    return {
        "id": made.set.backup_id,
        "clone": made.clone,
        "created": made.created,
        "message": made.message,
        "clones": list(made.clones),
    }


def _login(login: Login) -> dict[str, Any]:
    return {
        "host": login.host,
        "port": login.port,
        "socket": str(login.socket),
        "user": login.user,
        "password": login.password.get_secret_value(),
        "dsn": login.dsn,
    }


def created_json(result: Created) -> str:
    """A new clone, with its password."""
    password = result.password.get_secret_value() if result.password else None
    masked = masking_fields(result.masking) if result.masking is not None else None
    user = result.login.user if result.login else None
    return document(
        "clone", clone=_clone(result.info), user=user, password=password, seconds=_seconds(result), masking=masked
    )


def plan_json(plan: ClonePlan) -> str:
    """What making a clone would do."""
    return document(
        "clone-plan",
        name=plan.name,
        instance=plan.instance,
        source=plan.kind.value,
        backup_id=plan.set_id or None,
        snapshots=dict(plan.snapshots),
        receives=list(plan.receives),
        prepared=plan.is_prepared,
        replays=plan.replays,
        datasets=dict(plan.layout.datasets),
        mount=str(plan.copy.root),
        port=plan.port,
        bind_address=plan.bind_address,
        expires=stamp(plan.lease.expires),
        owner=plan.owner,
        profile=plan.profile.value,
        starts=plan.starts,
        masks=plan.masks,
    )


def listing_json(found: list[CloneInfo]) -> str:
    """All clones."""
    return document("clones", clones=[_clone(c) for c in found])


def detail_json(info: CloneInfo, commits: Sequence[Commit]) -> str:
    """One clone."""
    return document("clone-detail", clone=_clone(info), commits=[_commit(made) for made in commits])


def changed_json(info: CloneInfo, what: str) -> str:
    """A clone after something was done with it."""
    return document("clone-changed", done=what, clone=_clone(info))


def intention_json(found: Intention, what: str) -> str:
    """What a change would do."""
    return document(
        "clone-change-plan",
        what=what,
        clone=_clone(found.clone) if found.clone is not None else None,
        steps=list(found.steps),
    )


def login_json(login: Login) -> str:
    """How to reach a clone, with its password."""
    return document("clone-login", **_login(login))


def destroy_plan_json(found: DestroyPlan | None, name: str) -> str:
    """What destroying a clone would do."""
    commits = [_commit(made) for made in found.commits] if found else []
    return document("clone-destroy-plan", name=name, clone=_clone(found.info) if found else None, commits=commits)


def destroyed_json(found: DestroyPlan | None, name: str) -> str:
    """A clone that is gone; `clone` is null if there was none."""
    return document("clone-destroyed", name=name, clone=_clone(found.info) if found else None)


def reset_plan_json(found: ResetPlan) -> str:
    """What a reset would do."""
    return document(
        "clone-reset-plan", clone=_clone(found.info), backup_id=found.set_id or None, snapshots=dict(found.snapshots)
    )


def detach_json(found: DetachPlan, kind: str) -> str:
    """What detaching costs or has cost."""
    return document(kind, clone=_clone(found.info), cost_bytes=found.cost, available_bytes=found.available)


def committed_json(result: Committed) -> str:
    """A new commit."""
    snapshots = {role: snapshot.full_name for role, snapshot in result.set.snapshots.items()}
    return document(
        "clone-commit", id=result.set.backup_id, clone=result.info.name, message=result.message, snapshots=snapshots
    )


def prepared_json(source: CloneSource) -> str:
    """A snapshot set that was recovered and shut down cleanly."""
    snapshots = {role: snapshot.full_name for role, snapshot in source.set.snapshots.items()}
    return document("clone-prepared", backup_id=source.set.backup_id, snapshots=snapshots)


def swept_json(found: Sequence[ReapOutcome], *, planned: bool) -> str:
    """What a sweep did, or would do."""
    rows = [
        {
            "what": item.what,
            "name": item.name,
            "verdict": item.verdict.value,
            "reason": item.reason,
            "error": item.error.message if item.error else None,
        }
        for item in found
    ]
    return document(
        "reap-plan" if planned else "reap",
        swept=rows,
        reaped=sum(1 for item in found if item.verdict is LeaseVerdict.REAP),
    )
