"""Whether restored datasets may take the names of a server's encrypted ones, and where they must lie for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zsnapdb.base.errors import CommandError, PreflightError
from zsnapdb.planning.backup.at_rest import CLEAR, AtRest, NameChange, judge_key, objection_to
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.restore.plan import RestorePlan
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
        name: _existing_dataset(name)
        for source, place in tops
        for name in (origins.get(source, source), place, place.rpartition("/")[0], source.rpartition("/")[0])
    }
    seen = encryption.at_rest(shown.values())
    own_keys = set(plan.with_own_keys)
    for source, place in tops:
        # What is received inherits the encryption of what it is received below, unless its stream is raw
        # (zfs-receive(8)).
        own = AtRest("raw", source) if source in own_keys else seen[shown[origins.get(source, source)]]
        home, around = (seen[shown[name.rpartition("/")[0]]] for name in (source, place))
        replaced = seen[place] if shown[place] == place else CLEAR
        objection = objection_to(NameChange(source, place, own, home, around, replaced))
        if objection is not None:
            raise PreflightError(objection.reason, hint=objection.hint)


def judge_keys(plan: RestorePlan) -> list[FitnessFinding]:
    """Return what is to be said about the keys of the places that clones take. One command asks, if there are any."""
    step = plan.promotion
    if step is None or not plan.clones:
        return []
    places = [place for source, place in step.renames if source.startswith(plan.layout.top) and datasets.exists(place)]
    seen = encryption.at_rest(places)
    return [finding for place in places for finding in judge_key(place, seen[place])]


def open_again(places: Iterable[str], warn: Callable[[str], None]) -> None:
    """Load the keys that ZFS forgot when clones became their own encryption roots. One that is not there is a warning.

    `judge_key` says why. Nothing happens if every key is loaded.
    """
    seen = encryption.at_rest(places)
    for root in sorted({one.root for one in seen.values() if one.root is not None and not one.is_unlocked}):
        try:
            encryption.load_key(root)
        except CommandError as error:
            warn(
                f"the key of {root} is not loaded: what is mounted goes on, and nothing more can be mounted until"
                f" somebody runs `zfs load-key {root}` ({error.message})"
            )


def top_beside(place: str, name: str) -> str | None:
    """Return the dataset `name` beside the place if the place is encrypted; else None.

    From there a clone of it can take its name, and give it back.
    """
    parent = place.rpartition("/")[0]
    if not parent or not datasets.exists(place) or encryption.at_rest([place])[place].cipher is None:
        return None
    return f"{parent}/{name}"


def _existing_dataset(name: str) -> str:
    """Return the dataset, or the nearest one above it that exists."""
    while "/" in name and not datasets.exists(name):
        name = name.rpartition("/")[0]
    return name
