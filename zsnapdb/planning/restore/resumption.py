"""Whether an interrupted receive of a volume goes on where it stopped, or begins again. Pure."""

from __future__ import annotations

from zsnapdb.planning.restore.steps import Receive


def why_from_the_beginning(step: Receive, *, to_guid: int, from_guid: int, records: bool) -> str | None:
    """Return why what ZFS kept of an interrupted receive is of no use for this step; None if the receive goes on.

    `to_guid` and `from_guid` are what ZFS says of the interrupted stream (0: it is a full one). `records`: whether a
    record was received.
    """
    if (to_guid, from_guid) != (step.guid, step.from_guid or 0):
        return f"ZFS kept a part of another snapshot, with GUID {to_guid}, not of {step.snapshot}"
    if step.key_location is not None:
        return "a stream that is encrypted as its blocks were cannot be continued in its middle"
    if not records:
        return "nothing of it was received"
    return None
