"""Plans of changes of a clone, for `--plan`.

A plan makes the same checks as the change itself, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from zsnapdb.base.quantities import size
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import commits, lifecycle, masking_policy, room
from zsnapdb.jobs.clone import prepare as job
from zsnapdb.jobs.clone.catalogue import home, ready
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.locate import locate
from zsnapdb.jobs.clone.sources import CloneSource, RemoteBackup, with_volumes
from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.mysql.process import server_program
from zsnapdb.planning.clone.lease import stamp
from zsnapdb.planning.clone.masking import planned_lines


@dataclass(frozen=True)
class Intention:
    """What a change would do, one line for each step; no steps: nothing would change.

    `clone` is None if the change concerns no clone.
    """

    clone: CloneInfo | None
    steps: tuple[str, ...]


def start(settings: Settings, host: Host, name: str) -> Intention:
    """Return what a start would do. Raises the errors of a start that are known before it."""
    info = ready(settings, host, name)
    changing = ("end its interrupted change: it keeps its old data",) if info.phase is CopyPhase.CHANGING else ()
    if info.pid is not None:
        return Intention(info, changing)
    program = server_program.fitting(lifecycle.server_settings(settings, info), info.flavour, info.origin.version)
    how = (
        f"start {program.path} on port {info.port} of {info.bind_address}, and check that the"
        " clone is separate from its source"
    )
    if info.phase is CopyPhase.NEW:
        masking = settings.instance[info.instance].masking
        if not masking_policy.masks_at_start(masking, info):
            return Intention(info, ("write its credentials with a new password", how))
        scripts = tuple(f"mask the clone: {' '.join(words)}" for words in masking.run)
        scripts += planned_lines(info.origin.flavour) if scripts else ()
        return Intention(info, (*scripts, "write its credentials with a new password", how))
    masking_policy.refuse_unmasked(settings, info)
    return Intention(info, (how, *changing))


def stop(settings: Settings, host: Host, name: str) -> Intention:
    """Return what a stop would do."""
    info = ready(settings, host, name)
    return Intention(info, (f"shut down process {info.pid} cleanly; the data stays",) if info.pid is not None else ())


def extend(settings: Settings, host: Host, name: str, seconds: float | None) -> Intention:
    """Return when the lease would end after an extension."""
    info = ready(settings, host, name)
    lease = lifecycle.extended_lease(settings, host, info, seconds)
    same = lease.expires == info.lease.expires
    return Intention(
        info, () if same else (f"extend the lease to {stamp(lease.expires)} instead of {stamp(info.lease.expires)}",)
    )


def quota(settings: Settings, host: Host, name: str, wanted: int) -> Intention:
    """Return what the clone may have of its own after a change of its quota. The errors are those of the change."""
    info = ready(settings, host, name)
    room.refuse(settings, info, wanted)
    step = f"let the clone have {size(wanted)} of its own instead of {size(info.quota) if info.quota else 'any size'}"
    return Intention(info, () if wanted == info.quota else (step,))


def protect(settings: Settings, host: Host, name: str, seconds: float) -> Intention:
    """Return when the protection would end."""
    info = ready(settings, host, name)
    lease = lifecycle.protected_lease(settings, host, info, seconds)
    until = (
        f"protect the clone until {stamp(lease.protected_until)}"
        if lease.protected_until is not None
        else "remove the protection"
    )
    return Intention(info, () if lease.protected_until == info.lease.protected_until else (until,))


def commit(settings: Settings, host: Host, name: str, message: str) -> Intention:
    """Return what a commit would snapshot."""
    commits.message_text(message)
    info = ready(settings, host, name)
    commits.refuse_never_started(info)
    lock = ("block writes of its server (FLUSH TABLES WITH READ LOCK)",) if info.pid is not None else ()
    return Intention(info, (*lock, f"snapshot {', '.join(info.volumes.values())} at one moment"))


def prepare(
    settings: Settings, instance: Instance, requested: str, *, masks: bool = False, accepts_older: bool = False
) -> Intention:
    """Return what preparing a snapshot set would do."""
    rules = masking_policy.rules_of(instance.settings.masking, requested=masks)
    source = locate(settings, with_volumes(instance), requested, rules, accepts_older=accepts_older)
    if isinstance(source, CloneSource):
        rules = masking_policy.rules_for(source, rules)
        if job.is_done(source, rules):
            return Intention(None, ())
    scripts = instance.settings.masking.run if rules else ()
    once = (
        *(f"mask it: {' '.join(words)}" for words in scripts),
        "start its server once without network",
        "compare its position with the recorded position",
        "shut it down cleanly and snapshot its volumes",
    )
    if isinstance(source, RemoteBackup):
        backup_id = source.manifest.backup_id
        return Intention(None, (f"receive backup {backup_id} from the repository", "clone the backup", *once))
    return Intention(None, (f"clone set {source.set.backup_id} beside {home(settings, source.pool)}", *once))
