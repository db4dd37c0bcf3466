"""Exchanges the datasets of a server for restored ones, and back. Each change can be repeated after an interruption.

Before the first change, and again before each direction, the kernel and ZFS are asked (`jobs/host/production.py`). How
far an exchange has come is judged by GUIDs and marks (`planning/restore/exchange.py`), never by what a command
remembers.
"""

from __future__ import annotations

from collections.abc import Mapping

from zsnapdb.base.errors import NotThere, PreflightError
from zsnapdb.jobs.base.set_properties import INCARNATION_PROPERTY, RESTORED_PROPERTY
from zsnapdb.jobs.host import production
from zsnapdb.planning.restore.exchange import Exchange, ExchangeState, NamedDataset, judge, names_in, ways_back
from zsnapdb.planning.restore.handover_steps import Promote
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.zfs import datasets, mounting, owned
from zsnapdb.zfs.command import number_in
from zsnapdb.zfs.owned import Mark


def look(plan: RestorePlan, step: Promote) -> Exchange:
    """Return how far the exchange has come. Changes nothing."""
    return judge(step, _existing(plan, step))


def _existing(plan: RestorePlan, step: Promote) -> Mapping[str, NamedDataset]:
    there = {}
    for name in names_in(step):
        try:
            seen = datasets.properties(name, ["guid", RESTORED_PROPERTY, INCARNATION_PROPERTY])
        except NotThere:
            continue
        marks = ((RESTORED_PROPERTY, plan.restore_id), (INCARNATION_PROPERTY, step.incarnation))
        is_restored = any(seen[key].is_local and seen[key].value == value for key, value in marks)
        there[name] = NamedDataset(number_in(seen["guid"].value, ["zfs", "get", "guid", name]), is_restored)
    return there


def is_in_place(plan: RestorePlan) -> bool:
    """Whether the restored datasets have taken the place of the server's own, and have their mount points."""
    step = plan.promotion
    if step is None or look(plan, step).state is not ExchangeState.IN_PLACE:
        return False
    seen = datasets.properties_of([part.place for part in step.parts], [INCARNATION_PROPERTY])
    return all(
        (values[INCARNATION_PROPERTY].value, values[INCARNATION_PROPERTY].is_local) == (step.incarnation, True)
        for values in seen.values()
    )


def refuse_unclear(plan: RestorePlan, exchange: Exchange) -> None:
    """Raise PreflightError if it is not known which dataset is which, or if the restored ones are not complete."""
    if exchange.state is ExchangeState.UNCLEAR and not exchange.has_begun:
        raise PreflightError(
            f"nothing of the server of {plan.instance} was exchanged, and {'; '.join(exchange.reasons)}",
            hint=f"a run that gave the restore up was interrupted: end it with `zsnapdb restore {plan.instance}"
            f" --abandon --target {plan.layout.top}`",
        )
    if exchange.state is ExchangeState.UNCLEAR:
        raise PreflightError(
            f"the exchange of the datasets is in a state that no run of zsnapdb left: {'; '.join(exchange.reasons)}",
            hint="nothing was changed; see `zfs list -r` and `zfs get guid`, and put the datasets back by hand",
        )


def refuse_what_would_be_lost(step: Promote) -> None:
    """Raise PreflightError if the exchange would take away what is no volume of the server. Changes nothing."""
    places = {part.place: part.mountpoint for part in step.parts if part.old is not None}
    production.refuse_strangers(places)
    production.refuse_second_mounts(places)
    production.refuse_mounted_elsewhere(places, after_unmount=False)


def swap(plan: RestorePlan, step: Promote) -> None:
    """Rename the old datasets, and the restored datasets to the old names. All are unmounted first, and no server runs.

    PreflightError, with nothing renamed, if a server uses one of them, or if another dataset would go along.
    """
    exchange = look(plan, step)
    refuse_unclear(plan, exchange)
    production.refuse_running(names_in(step), "the datasets of the server are to be exchanged")
    if exchange.state is not ExchangeState.IN_PLACE:
        if exchange.state is ExchangeState.BEFORE:
            refuse_what_would_be_lost(step)
        for part in reversed(step.parts):
            if datasets.exists(part.dataset):
                datasets.unmount(part.dataset)
        _release_olds(step)
        for old, new in step.renames:
            if datasets.exists(old) and not datasets.exists(new):
                datasets.rename(old, new)
            elif not datasets.exists(new):
                raise PreflightError(
                    f"{old} does not exist, so it cannot be renamed to {new}",
                    hint="another dataset was renamed in between; check `zfs list`",
                )
    top, mark = plan.layout.top, Mark(RESTORED_PROPERTY, plan.restore_id)
    if top not in [part.dataset for part in step.parts] and owned.is_ours(top, mark):
        owned.destroy_datasets([top], mark)


def _release_olds(step: Promote) -> None:
    """Unmount the server's own datasets, which are in their places still, and keep a boot from mounting them."""
    for part in reversed([part for part in step.parts if part.old is not None]):
        seen = datasets.properties(part.place, ["guid", "mounted"]) if datasets.exists(part.place) else None
        if seen is None or part.old_guid not in (None, int(seen["guid"].value)):
            continue
        if not datasets.exists(part.dataset):
            # Plans of older versions have no GUID. Without the restored dataset in its own place this may be it.
            continue
        # This one first: whoever undoes the exchange knows by it that the dataset was unmounted by us.
        datasets.set_properties(part.place, {"canmount": "noauto"})
        datasets.unmount(part.place)
    production.refuse_mounted_elsewhere(
        [part.place for part in step.parts if part.old is not None and datasets.exists(part.dataset)],
        after_unmount=True,
    )


def swap_back(plan: RestorePlan, step: Promote) -> None:
    """Undo an exchange that is not complete: the server's own datasets are in their places again, and mounted.

    Nothing happens to datasets that were not renamed. PreflightError, with nothing renamed, if a server uses one of
    them, if it is not known which is which, or if the restored datasets are all in place: then the exchange is done.
    """
    exchange = look(plan, step)
    if not exchange.has_begun:
        remount(step)
        return
    refuse_unclear(plan, exchange)
    if exchange.state is ExchangeState.IN_PLACE:
        raise PreflightError(
            f"the restored datasets of {plan.instance} are in place of the server's own already",
            hint=f"go on with `zsnapdb rewind {plan.instance} --resume`, or, after `zsnapdb restore --handover"
            f" promote`, with `zsnapdb restore {plan.instance} --resume`; what was replaced is kept",
        )
    production.refuse_running(names_in(step), "the exchange of datasets is to be undone")
    for new, old in ways_back(step):
        if datasets.exists(new) and not datasets.exists(old):
            datasets.unmount(new)
            datasets.rename(new, old)
    remount(step)


def remount(step: Promote) -> None:
    """Mount the server's own datasets as they were before an exchange, and let a boot mount them as it did.

    They are in their places. A server that runs from them is not disturbed, and what is mounted stays so.
    """
    olds = {part.place: part for part in step.parts if part.old is not None}
    seen = datasets.properties_of(list(olds), ["canmount"]) if olds else {}
    mounting.mount_all(olds, {place: part.mountpoint for place, part in olds.items()})
    for place, part in olds.items():
        before = part.old_canmount or "on"
        if seen[place]["canmount"].value != before:
            datasets.set_properties(place, {"canmount": before})
