"""What a change of a clone would do, for `--plan`: everything is looked at as the change itself would, and nothing is touched."""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.config import Settings
from zsnapdb.errors import PreflightError
from zsnapdb.jobs.clock import now
from zsnapdb.jobs.clone import lifecycle, masking_policy
from zsnapdb.jobs.clone.catalogue import CloneInfo, home, policy, ready
from zsnapdb.jobs.clone.create import locate
from zsnapdb.jobs.clone.properties import ClonePhase
from zsnapdb.jobs.clone.sources import Remote, with_volumes
from zsnapdb.jobs.instance import Instance
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.lease import stamp


@dataclass(frozen=True)
class Intention:
    """What would be done, in words, a line each; none: nothing would change.

    `clone` is None where it is about no clone.
    """

    clone: CloneInfo | None
    steps: tuple[str, ...]


def start(settings: Settings, name: str) -> Intention:
    """Return what a start would do. The errors of a start that can be told before it are raised."""
    info = ready(settings, name)
    if info.pid is not None:
        return Intention(info, ())
    server = lifecycle.server_settings(settings, info)
    how = (
        f"start {server.binary or 'the server program'} on port {info.port} of {info.bind_address}, and check that it"
        " is separate from its source"
    )
    if info.phase is ClonePhase.NEW:
        masking = settings.instance[info.instance].masking
        scripts = tuple(f"mask it: {' '.join(words)}" for words in masking.run)
        return Intention(info, (*scripts, "write its credentials, a new password", how))
    masking_policy.refuse_unmasked(settings, info)
    return Intention(info, (how,))


def stop(settings: Settings, name: str) -> Intention:
    """Return what a stop would do."""
    info = ready(settings, name)
    return Intention(info, (f"shut process {info.pid} down cleanly; the data stays",) if info.pid is not None else ())


def extend(settings: Settings, name: str, seconds: float | None) -> Intention:
    """Return until when an extended lease would last."""
    info, terms = ready(settings, name), policy(settings.clones)
    lease = leases.extended(info.lease, terms.ttl if seconds is None else seconds, terms, now())
    same = lease.expires == info.lease.expires
    return Intention(
        info, () if same else (f"its lease lasts until {stamp(lease.expires)} instead of {stamp(info.lease.expires)}",)
    )


def protect(settings: Settings, name: str, seconds: float) -> Intention:
    """Return until when it would be protected."""
    info = ready(settings, name)
    lease = leases.protected(info.lease, seconds, policy(settings.clones), now())
    until = (
        f"it is protected until {stamp(lease.protected_until)}"
        if lease.protected_until is not None
        else "its protection is taken away"
    )
    return Intention(info, () if lease.protected_until == info.lease.protected_until else (until,))


def commit(settings: Settings, name: str, message: str) -> Intention:
    """Return what a commit would snapshot."""
    lifecycle.message_text(message)
    info = ready(settings, name)
    if info.phase is not ClonePhase.READY:
        raise PreflightError(
            f"the server of clone {name} was never started ({info.phase})", hint=f"`zsnapdb clone start {name}`"
        )
    held = ("its writers wait meanwhile (FLUSH TABLES WITH READ LOCK)",) if info.pid is not None else ()
    return Intention(info, (*held, f"snapshot {', '.join(info.volumes.values())} in one moment"))


def prepare(settings: Settings, instance: Instance, wanted: str) -> Intention:
    """Return what preparing a snapshot set would do."""
    found = locate(settings, with_volumes(instance), wanted)
    once = "start it once, unreachable, compare its position, shut it down cleanly, and snapshot that"
    if isinstance(found, Remote):
        return Intention(None, (f"receive backup {found.manifest.backup_id} from the repository", f"clone it, {once}"))
    return Intention(
        None,
        () if found.is_prepared else (f"clone set {found.set.backup_id} beside {home(settings, found.pool)}, {once}",),
    )
