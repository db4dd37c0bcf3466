"""Fields and words of bases and machines that several views share."""

from __future__ import annotations

from zsnapdb.jobs.copies.properties import CopyPhase
from zsnapdb.jobs.vm.catalogue import SeenMachine
from zsnapdb.planning.vm.seed import GuestIdentity

_INSIDE = {
    GuestIdentity.NONE: (
        "zsnapdb changed nothing inside the guest: its machine-id, host keys, host name and the identity of its servers"
        " are those of the machine that was cloned"
    ),
    GuestIdentity.CLOUD_INIT: (
        "cloud-init in the guest is given a host name, and makes a new machine-id and new ssh host keys (NoCloud, from"
        " a CD); in a guest without cloud-init nothing changes. The identity of its servers (server_uuid, server_id) is"
        " that of the machine that was cloned"
    ),
}


def inside(identity: GuestIdentity) -> str:
    """Return what is said of every clone about the identity of its guest."""
    return _INSIDE[identity]


def state(seen: SeenMachine) -> str:
    """Return what the machine does now, or the phase of a machine that is not complete."""
    if seen.machine.phase is not CopyPhase.READY:
        return seen.machine.phase
    return seen.state
