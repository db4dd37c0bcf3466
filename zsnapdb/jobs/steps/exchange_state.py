"""Observes how far a restore has exchanged a server's datasets for the restored ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zsnapdb.base.errors import NotFound
from zsnapdb.jobs.base.snapshot_set_properties import INCARNATION_PROPERTY, RESTORED_PROPERTY
from zsnapdb.planning.restore.dataset_exchange import Exchange, NamedDataset, judge, names_in
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Promote
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import number_in


def look(plan: RestorePlan, step: Promote) -> Exchange:
    """Return the observed state of the exchange; change nothing."""
    return judge(step, existing(plan, step, names_in(step)))


def existing(plan: RestorePlan, step: Promote, names: Iterable[str]) -> Mapping[str, NamedDataset]:
    """Return those of the datasets that exist, each with its GUID and whether this restore marked it."""
    there = {}
    for name in names:
        try:
            seen = datasets.properties(name, ["guid", RESTORED_PROPERTY, INCARNATION_PROPERTY])
        except NotFound:
            continue
        marks = ((RESTORED_PROPERTY, plan.restore_id), (INCARNATION_PROPERTY, step.incarnation))
        is_restored = any(seen[key].is_local and seen[key].value == value for key, value in marks)
        there[name] = NamedDataset(number_in(seen["guid"].value, ["zfs", "get", "guid", name]), is_restored)
    return there
