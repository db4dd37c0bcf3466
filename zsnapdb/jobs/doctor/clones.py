"""What the doctor says of the clones of an instance: their account, their room, their pool, and what runs left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ZsnapdbError
from zsnapdb.base.quantities import counted
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.instance import Instance
from zsnapdb.jobs.clone import account, address, haproxy, pool, room
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.copies.sweeping import Leak
from zsnapdb.planning.backup.fitness import FitnessFinding, ok, warning


@dataclass(frozen=True)
class ClonesHere:
    """The clones of this host, and what runs that died left of them and of other copies: read once for all instances.

    Empty where there is no ZFS.
    """

    known: Sequence[CloneInfo] = ()
    leaks: Sequence[Leak] = ()


def findings(settings: Settings, instance: Instance, here: ClonesHere) -> list[FitnessFinding]:
    """Return the findings about the clones of the instance. Nothing is changed."""
    return [
        *_account(settings, instance),
        *_room(settings, instance, here.known),
        *_pool(settings, instance),
        *_addresses(settings, instance),
        *_left(instance, here.leaks),
    ]


def _account(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    """Check the account of the servers of clones, if one is configured."""
    name = settings.clones.server_user
    if name is None or instance.settings.vm is not None:
        return []
    try:
        account.check(instance.settings.server, settings.clones)
    except ZsnapdbError as error:
        return [warning("clones", f"{error.message}: clones on this host will be refused", error.hint)]
    return [ok("clones", f"their servers run as {name}")]


def _room(settings: Settings, instance: Instance, known: Sequence[CloneInfo]) -> list[FitnessFinding]:
    """Return a warning for each way in which clones of the instance may take production's space."""
    try:
        return [warning("clones", item.text, item.hint) for item in room.objections(settings, known, instance.name)]
    except ZsnapdbError:
        # Without ZFS there are no clones.
        return []


def _pool(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    """Return whether so many clones wait as should, each of which would be handed out."""
    if instance.settings.pool is None:
        return []
    try:
        good, wanted = len(pool.good_slots(settings, instance)), instance.settings.pool.size
    except ZsnapdbError as error:
        return [warning("clones", f"the pool cannot be judged: {error.message}", error.hint)]
    if good >= wanted:
        return [ok("clones", f"{good} clones wait in the pool")]
    fills = f"run `zsnapdb clone pool {instance.name}`, which says why one is not made"
    return [warning("clones", f"{good} of {wanted} clones wait in the pool", fills)]


def _addresses(settings: Settings, instance: Instance) -> list[FitnessFinding]:
    """Return whether HAProxy leads the ports that the clones keep where it must."""
    if settings.clones.address is None or instance.settings.vm is not None:
        return []
    try:
        known = address.look(settings, instance.host)
    except ZsnapdbError:
        # Without ZFS there are no clones.
        return []
    if known.error is not None:
        text = (
            f"clones are reached at ports that a reset may change, and are not reset by a swap: {known.error.message}"
        )
        return [warning("clones", text, known.error.hint)]
    wrong = [kept for kept in known.wrong if kept.clone is None or kept.clone.instance == instance.name]
    if wrong:
        ports = ", ".join(str(kept.port) for kept in wrong)
        is_listened_at = all(kept.is_listened_at for kept in wrong)
        follows = "run `zsnapdb clone addresses --follow`, or `zsnapdb reap`" if is_listened_at else haproxy.HINT
        return [warning("clones", f"HAProxy does not lead where it must: port {ports}", follows)]
    return [ok("clones", f"HAProxy leads {counted(len(known.ports), 'port')} to clones")]


def _left(instance: Instance, clone_leaks: Sequence[Leak]) -> list[FitnessFinding]:
    return [
        warning("clones", f"{leak.what}: {leak.where}", leak.hint)
        for leak in clone_leaks
        if leak.instance in (instance.name, "")
    ]
