"""Whether restored datasets may take the names of a server's encrypted ones, and where they must lie for that."""

from __future__ import annotations

from zsnapdb.base.errors import PreflightError
from zsnapdb.planning.at_rest import CLEAR, AtRest, must_lie_beside, objection_to_place
from zsnapdb.planning.restore.steps import RestorePlan
from zsnapdb.zfs import datasets, encryption


def refuse_exchange(plan: RestorePlan) -> None:
    """Raise PreflightError if ZFS would refuse a rename of the exchange, or if it would leave the server in the clear.

    Changes nothing. One command asks for all datasets; none is asked if the restore exchanges none.
    """
    step = plan.promotion
    if step is None:
        return
    tops = [(source, place) for source, place in step.renames if source.startswith(plan.layout.top)]
    origins = {clone.dataset: clone.origin.partition("@")[0] for clone in plan.clones}
    shown = {
        name: _existing(name)
        for source, place in tops
        for name in (origins.get(source, source), place, place.rpartition("/")[0])
    }
    seen = encryption.at_rest(shown.values())
    for source, place in tops:
        # What is received inherits the encryption of what it is received below (zfs-receive(8)).
        own = seen[shown[origins.get(source, source)]]
        replaced = seen[place] if shown[place] == place else CLEAR
        objection = objection_to_place(place, source, own, replaced, seen[shown[place.rpartition("/")[0]]])
        if objection is not None:
            raise PreflightError(objection.reason, hint=objection.hint)


def top_beside(place: str, name: str) -> str | None:
    """Return the dataset `name` beside the place, if a clone of it can take its name only from there; else None."""
    parent = place.rpartition("/")[0]
    if not parent or not datasets.exists(place):
        return None
    seen: dict[str, AtRest] = encryption.at_rest([place, parent])
    return f"{parent}/{name}" if must_lie_beside(seen[place], seen[parent]) else None


def _existing(name: str) -> str:
    """Return the dataset, or the nearest one above it that exists."""
    while "/" in name and not datasets.exists(name):
        name = name.rpartition("/")[0]
    return name
