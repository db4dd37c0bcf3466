"""Determines the progress of an exchange of a server's datasets from their GUIDs and properties. Pure.

A renamed dataset keeps its GUID (zfsprops(7), guid). A name alone proves nothing, because another command or a person
may have renamed a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from zsnapdb.base.domain_types import parse_gtids
from zsnapdb.base.gtid import GtidPosition, Gtids, contains
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import Promote, PromotePart
from zsnapdb.planning.server_family import family


class ExchangeState(StrEnum):
    """The progress of an exchange.

    BEFORE: the server's own datasets have their names. HALF: some datasets were renamed. IN_PLACE: the restored
    datasets have the names of the server's datasets. UNCLEAR: a dataset is missing, or another dataset has its name.
    """

    BEFORE = "before"
    HALF = "half"
    IN_PLACE = "in place"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class NamedDataset:
    """An existing dataset: its GUID, and whether the restore that makes the exchange has marked it."""

    guid: int
    is_restored: bool


@dataclass(frozen=True)
class Exchange:
    """The state of an exchange, and the reasons if the state is unclear.

    The field `has_begun` is set if a dataset was renamed. Before the first rename, restored datasets may be missing
    because the restore has not created them yet.
    """

    state: ExchangeState
    has_begun: bool
    reasons: tuple[str, ...] = ()


def ways_out(exchange: Exchange | None) -> tuple[bool, bool]:
    """Return whether the exchange can be continued, and whether it can be reverted. None means that it is unknown.

    If neither is possible, the first value is True, because the command that continues it says what to do.
    """
    if exchange is None or exchange.state is ExchangeState.IN_PLACE:
        return True, False
    if exchange.state is ExchangeState.UNCLEAR:
        return exchange.has_begun, not exchange.has_begun
    return True, True


def names_in(step: Promote) -> list[str]:
    """Return all names that datasets have before, during or after the exchange."""
    return [name for part in step.parts for name in (part.dataset, part.place, part.old) if name is not None]


def judge(step: Promote, there: Mapping[str, NamedDataset]) -> Exchange:
    """Return the state of the exchange. The argument `there` maps names to existing datasets."""
    restored_in_place = [_is_restored(part.place, there) for part in step.parts]
    olds_in_place = [_is_old(part, part.place, there) for part in step.parts if part.old is not None]
    has_begun = any(restored_in_place) or not all(olds_in_place)
    if all(restored_in_place):
        # If all restored datasets are in place, the replaced datasets may already have been removed.
        return Exchange(ExchangeState.IN_PLACE, has_begun)
    reasons = [reason for part in step.parts if (reason := _objection(part, there))]
    if reasons:
        return Exchange(ExchangeState.UNCLEAR, has_begun, tuple(reasons))
    return Exchange(ExchangeState.HALF if has_begun else ExchangeState.BEFORE, has_begun)


def rename_objection(step: Promote, source: str, target: str, seen: NamedDataset | None) -> str:
    """Return why a rename of the exchange or its reversal must not be made; "" if nothing is wrong.

    `seen` is the dataset that has the name `source` now. The name may have changed since the plan was made.
    """
    for part in step.parts:
        named = {} if seen is None else {source: seen}
        if part.old in (source, target) and not _is_old(part, source, named):
            return f"{source} is not the server's own dataset of volume {part.role}"
        if part.dataset in (source, target) and not _is_restored(source, named):
            return f"{source} is not the restored dataset of volume {part.role}"
    return f"{source} does not exist" if seen is None else ""


def _objection(part: PromotePart, there: Mapping[str, NamedDataset]) -> str:
    if not _is_restored(part.dataset, there) and not _is_restored(part.place, there):
        return f"the restored dataset of volume {part.role} is neither {part.dataset} nor {part.place}"
    if part.old is None:
        other = there.get(part.place)
        return f"{part.place} was made meanwhile" if other is not None and not other.is_restored else ""
    if _is_old(part, part.place, there) or _is_old(part, part.old, there):
        return ""
    return f"the server's own dataset of volume {part.role} is neither {part.place} nor {part.old}"


def _is_restored(name: str, there: Mapping[str, NamedDataset]) -> bool:
    one = there.get(name)
    return one is not None and one.is_restored


def _is_old(part: PromotePart, name: str, there: Mapping[str, NamedDataset]) -> bool:
    one = there.get(name)
    return one is not None and not one.is_restored and part.old_guid in (None, one.guid)


def recovery_commands(step: Promote) -> list[tuple[str, str]]:
    """Return the renames (from, to) that undo the exchange, in order.

    If the exchange did not make a rename, the caller skips the rename that undoes it.
    """
    return [(new, old) for old, new in reversed(step.renames)]


@dataclass(frozen=True)
class Inside:
    """A dataset or mount below a replaced dataset, or a mount that covers the replaced dataset itself (`covers`).

    The text `what` describes the dataset or mount.
    """

    name: str
    what: str
    covers: bool = False


def strangers(places: Mapping[str, str], below: Sequence[str], mounts: Sequence[tuple[str, str]]) -> list[Inside]:
    """Return the datasets and mounts below the replaced datasets that an exchange would move without a replacement.

    The argument `places` maps the dataset of each volume to its mount point, and `below` contains all datasets below
    these datasets. The argument `mounts` contains the path and source of every mount on this host, in mount order. A
    mount over a replaced dataset comes first, because an unmount of its path would remove this mount instead of the
    dataset.
    """
    known = set(places)
    datasets = [Inside(name, "a dataset below it") for name in below if name not in known]
    covers, mounted = list[Inside](), list[Inside]()
    for number, (path, source) in enumerate(mounts):
        hidden = [one for point, one in mounts[:number] if point == path == places.get(one)]
        if source in known:
            continue
        if hidden:
            covers.insert(0, Inside(path, f"a mount of {source} over {hidden[-1]}", covers=True))
        elif source not in below and any(path.startswith(point.rstrip("/") + "/") for point in places.values()):
            mounted.append(Inside(path, f"a mount of {source}"))
    return [*covers, *datasets, *mounted]


def differences(plan: RestorePlan, server_id: int, executed: Gtids | None, *, wanted_id: int | None) -> list[str]:
    """Return the differences between the started server and the planned state as texts; empty if there are none.

    The started server may have more transactions, because users may already have written to it. Its GTIDs are in
    `executed` (None if they were not read). The argument `wanted_id` is the required server_id, or None for any.
    """
    wrong, flavour, point = list[str](), plan.flavour, plan.point
    if wanted_id is not None and server_id != wanted_id:
        wrong.append(f"its server_id is {server_id}, not {wanted_id}")
    if point.gtids is None or executed is None:
        return wrong
    restored = parse_gtids(flavour, point.gtids)
    if not contains(executed, restored):
        wrong.append(f"it has executed {executed}, and lacks some of {restored}")
    if isinstance(executed, GtidPosition) and isinstance(restored, GtidPosition) and wanted_id is not None:
        wrong += _under_old_id(executed, restored, plan.server_id)
    out = point.following.gtid if point.following is not None else None
    # A MariaDB position contains only the newest number of each domain, and not which servers assigned the earlier
    # numbers.
    if out is not None and family(flavour).gtids_are_sets and contains(executed, parse_gtids(flavour, str(out))):
        wrong.append(f"it has {out}, which the point leaves out")
    return wrong


def _under_old_id(executed: GtidPosition, restored: GtidPosition, replaced: int) -> list[str]:
    """Return a text for each GTID after the point that the replaced server may have given to another transaction."""
    return [
        f"it has {domain}-{server}-{number} after the point, which the replaced server may have given to another one"
        for domain, (server, number) in executed.heads.items()
        if server == replaced and number > restored.heads.get(domain, (0, 0))[1]
    ]
