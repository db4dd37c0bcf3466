"""Exchanges a server's datasets for restored datasets, and reverses the exchange.

If the exchange or its reversal is interrupted, it can be repeated. The kernel and ZFS are queried before the first
change, before the exchange and before its reversal (`jobs/host/dataset_use_checks.py`). The GUIDs and marks of the
datasets show the state of an exchange (`planning/restore/dataset_exchange.py`), so the state need not be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from zsnapdb.base.domain_types import PROPERTY
from zsnapdb.base.errors import CommandError, CommandTimeout, PreflightError, ZsnapdbError
from zsnapdb.base.patterns import printable
from zsnapdb.jobs.base.snapshot_set_properties import INCARNATION_PROPERTY, RESTORED_PROPERTY
from zsnapdb.jobs.host import dataset_use_checks
from zsnapdb.jobs.steps.exchange_state import existing, look
from zsnapdb.planning.backup.dataset_encryption import CLEAR, DatasetEncryption, NameChange, judge_key, objection_to
from zsnapdb.planning.backup.fitness import FitnessFinding
from zsnapdb.planning.dataset_property_classes import GUARANTEES, SPACE, PropertyClass, names_of, removed_names
from zsnapdb.planning.foreign_snapshots import NO_SNAPSHOTS
from zsnapdb.planning.restore.dataset_exchange import (
    Exchange,
    ExchangeState,
    names_in,
    recovery_commands,
    rename_objection,
)
from zsnapdb.planning.restore.plan import RestorePlan
from zsnapdb.planning.restore.steps import CloneSnapshot, Promote, PromotePart
from zsnapdb.zfs import datasets, destruction, encryption, explicit_settings, mounting
from zsnapdb.zfs.destruction import Mark
from zsnapdb.zfs.explicit_settings import Right


def is_in_place(plan: RestorePlan) -> bool:
    """Return whether the restored datasets have taken the names and mount points of the server's old datasets."""
    step = plan.promotion
    if step is None or look(plan, step).state is not ExchangeState.IN_PLACE:
        return False
    seen = datasets.properties_of([part.place for part in step.parts], [INCARNATION_PROPERTY])
    return all(
        (values[INCARNATION_PROPERTY].value, values[INCARNATION_PROPERTY].is_local) == (step.incarnation, True)
        for values in seen.values()
    )


def refuse_unclear(plan: RestorePlan, exchange: Exchange) -> None:
    """Raise PreflightError if the state of the exchange is unclear, for example if restored datasets are missing."""
    if exchange.state is ExchangeState.UNCLEAR and not exchange.has_begun:
        raise PreflightError(
            f"no dataset of the server of {plan.instance} was exchanged: {'; '.join(exchange.reasons)}",
            hint=f"a run that gave the restore up was interrupted: end it with `zsnapdb restore {plan.instance}"
            f" --abandon --target {plan.layout.top}`",
        )
    if exchange.state is ExchangeState.UNCLEAR:
        raise PreflightError(
            f"the exchange of the datasets is in a state that zsnapdb never leaves: {'; '.join(exchange.reasons)}",
            hint="nothing was changed; see `zfs list -r` and `zfs get guid`, and put the datasets back by hand",
        )


def refuse_what_would_be_lost(step: Promote) -> None:
    """Raise PreflightError if the exchange would remove data that is on no volume of the server; change nothing."""
    places = {part.place: part.mountpoint for part in step.parts if part.old is not None}
    dataset_use_checks.refuse_strangers(places)
    dataset_use_checks.refuse_second_mounts(places)
    dataset_use_checks.refuse_mounted_elsewhere(places, after_unmount=False)
    dataset_use_checks.refuse_covering(
        [part.mountpoint for part in step.parts if part.old is None],
        {name for part in step.parts for name in (part.dataset, part.place, part.old) if name is not None},
    )


def swap(plan: RestorePlan, step: Promote) -> None:
    """Unmount all datasets. Rename the old datasets, then give the restored datasets the old names.

    The caller must stop the server first.

    Raises:
        PreflightError: a server uses one of the datasets, or a rename would also rename a foreign dataset; nothing was
            renamed.
    """
    exchange = look(plan, step)
    refuse_unclear(plan, exchange)
    dataset_use_checks.refuse_running(names_in(step), "the datasets of the server are to be exchanged")
    if exchange.state is not ExchangeState.IN_PLACE:
        if exchange.state is ExchangeState.BEFORE:
            refuse_what_would_be_lost(step)
        for part in reversed(step.parts):
            if datasets.exists(part.dataset):
                datasets.unmount(part.dataset)
        _release_olds(step)
        for old, new in step.renames:
            if not datasets.exists(new):
                _refuse_other(plan, step, old, new)
                datasets.rename(old, new)
    top, mark = plan.layout.top, Mark(RESTORED_PROPERTY, plan.restore_id)
    if top not in [part.dataset for part in step.parts] and destruction.is_ours(top, mark):
        destruction.destroy_datasets([top], mark)


def _refuse_other(plan: RestorePlan, step: Promote, source: str, target: str) -> None:
    """Raise PreflightError if the dataset `source` is not the one that the plan saw, or does not exist."""
    objection = rename_objection(step, source, target, existing(plan, step, [source]).get(source))
    if objection:
        raise PreflightError(
            f"{source} cannot be renamed to {target}: {objection}",
            hint="another program renamed datasets in between; put them back by hand, see `zfs list -o name,guid`",
        )


def _release_olds(step: Promote) -> None:
    """Unmount the server's own datasets that still have their names, and keep them unmounted at boot."""
    for part in reversed([part for part in step.parts if part.old is not None]):
        seen = datasets.properties(part.place, ["guid", "mounted"]) if datasets.exists(part.place) else None
        if seen is None or part.old_guid not in (None, int(seen["guid"].value)):
            continue
        if not datasets.exists(part.dataset):
            # Plans of older versions contain no GUIDs. If no restored dataset still has its own name, this dataset may
            # be the restored one.
            continue
        # Make this change first, because it shows a later undo that zsnapdb unmounted the dataset.
        datasets.set_properties(part.place, {"canmount": "noauto"})
        datasets.unmount(part.place)
    dataset_use_checks.refuse_mounted_elsewhere(
        [part.place for part in step.parts if part.old is not None and datasets.exists(part.dataset)],
        after_unmount=True,
    )


def swap_back(plan: RestorePlan, step: Promote) -> None:
    """Undo an incomplete exchange: the server's own datasets get their names back and are mounted.

    Datasets that were not renamed are not changed.

    Raises:
        PreflightError: a server uses one of the datasets, the datasets cannot be identified, or the exchange is
            complete. Nothing was renamed.
    """
    exchange = look(plan, step)
    if not exchange.has_begun:
        remount(step)
        return
    refuse_unclear(plan, exchange)
    if exchange.state is ExchangeState.IN_PLACE:
        raise PreflightError(
            f"the restored datasets of {plan.instance} have already replaced the server's own",
            hint=f"continue with `zsnapdb rewind {plan.instance} --resume`, or, after `zsnapdb restore --handover"
            f" promote`, with `zsnapdb restore {plan.instance} --resume`; the replaced datasets are kept",
        )
    dataset_use_checks.refuse_running(names_in(step), "the exchange of datasets is to be undone")
    for new, old in recovery_commands(step):
        if datasets.exists(new) and not datasets.exists(old):
            _refuse_other(plan, step, new, old)
            datasets.unmount(new)
            datasets.rename(new, old)
    remount(step)


def remount(step: Promote) -> None:
    """Mount the server's own datasets as before the exchange.

    If they were mounted at boot before, they are mounted at boot again. The datasets must have their original names.
    Mounted datasets stay mounted, so a running server is not disturbed.
    """
    olds = {part.place: part for part in step.parts if part.old is not None}
    dataset_use_checks.refuse_other_datasets({place: part.old_guid for place, part in olds.items()})
    seen = datasets.properties_of(list(olds), ["canmount"]) if olds else {}
    mounting.mount_all(olds, {place: part.mountpoint for place, part in olds.items()})
    for place, part in olds.items():
        before = part.old_canmount or "on"
        if seen[place]["canmount"].value != before:
            datasets.set_properties(place, {"canmount": before})


RELEASED = {name: f"{PROPERTY}:replaced-{name}" for name in GUARANTEES}
"""For each kind of reservation, the property of a replaced dataset that records its former size in bytes.

The new dataset has taken over the reservation.
"""
_NOTHING = ("0", "none")
_SWITCHES = ("readonly", *datasets.SAFE_MOUNT)
Warn = Callable[[str], None]


@dataclass(frozen=True)
class OwnSettings:
    """The settings that administrators made on a dataset: local and received properties, and delegated rights."""

    properties: Mapping[str, str]
    rights: frozenset[Right]

    @classmethod
    def read(cls, dataset: str) -> OwnSettings:
        """Read the settings from the production dataset or, after the exchange, from the replaced dataset."""
        values = dict(explicit_settings.own_values([dataset])[dataset])
        released = datasets.properties(dataset, list(RELEASED.values()))
        for name, key in RELEASED.items():
            if released[key].is_local and released[key].value.isdecimal() and values.get(name, "0") in _NOTHING:
                values[name] = released[key].value
        return cls(values, explicit_settings.rights_on(dataset))


def notes(step: Promote, clones: Sequence[CloneSnapshot]) -> tuple[str, ...]:
    """Return notes on which settings of production the restored datasets will get, and which they cannot get."""
    olds = [part for part in step.parts if part.old is not None]
    hidden = tuple(
        f"the files in {part.mountpoint} on this host will be hidden by the restored {part.place}"
        for part in step.parts
        if part.old is None and _has_files(Path(part.mountpoint))
    )
    if not olds:
        return hidden
    said = [*hidden]
    for part in olds:
        seen = OwnSettings.read(part.place)
        names = [*sorted(seen.properties), *(["rights (zfs allow)"] if seen.rights else [])]
        if names:
            said.append(f"the restored {part.place} gets the settings that production has there: {', '.join(names)}")
        said += _too_large(part, seen, [clone for clone in clones if clone.role == part.role])
    where = "up to the point go to the restored datasets, later ones stay on" if clones else "stay on"
    keeps = "the replaced datasets keep their properties and rights; a reservation moves to the restored ones"
    return (*said, f"snapshots of production {where} the replaced datasets", keeps)


def _has_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _too_large(part: PromotePart, seen: OwnSettings, clones: Sequence[CloneSnapshot]) -> list[str]:
    """Return a note if the restored data exceeds the `refquota` that an administrator set on the old dataset."""
    limit = seen.properties.get("refquota", "0")
    if not clones or not limit.isdecimal() or int(limit) == 0:
        return []
    size = int(datasets.properties(clones[0].origin, ["referenced"])["referenced"].value)
    if size <= int(limit):
        return []
    return [f"refquota={limit} of {part.place} cannot be given to the restored one, which refers to {size} bytes"]


def behaviour_of(part: PromotePart, *, is_foreign: bool) -> dict[str, str]:
    """Return the property values that the new dataset needs before the server starts, to behave like the old one.

    `is_foreign` says that untrusted users may have written the files. In this case set-user-id programs and device
    files must not work in the dataset.
    """
    if part.old is None or not datasets.exists(part.old):
        return {}
    known = explicit_settings.known_names(part.old)
    switches = [name for name in _SWITCHES if not (is_foreign and name in datasets.SAFE_MOUNT)]
    names = [name for name in (*names_of(PropertyClass.DATA, "filesystem"), *switches) if name in known]
    seen = datasets.properties_of([part.old, part.place], names)
    wanted = {name: each.value for name, each in seen[part.old].items() if each.value != datasets.UNSET}
    return {name: value for name, value in wanted.items() if seen[part.place][name].value != value}


def give_defaults(parts: Sequence[PromotePart]) -> None:
    """Let the datasets inherit mount points and `canmount` if the old datasets inherited them.

    Parent datasets come first. Call this before the datasets are mounted, because both changes make ZFS unmount a
    dataset. A dataset keeps its own mount point if it would inherit a different one.
    """
    for part in parts:
        if part.old is None or not datasets.exists(part.old):
            continue
        if "mountpoint" not in explicit_settings.own_names([part.old])[part.old]:
            datasets.inherit([part.place], ["mountpoint"])
            if datasets.properties(part.place, ["mountpoint"])["mountpoint"].value != part.mountpoint_property:
                datasets.set_properties(part.place, {"mountpoint": part.mountpoint_property})
        if part.old_canmount_is_set is False:
            datasets.reset(part.place, "canmount")


def copy_site_settings(part: PromotePart, warn: Warn, *, is_foreign: bool) -> None:
    """Copy the settings of administrators from the old dataset to the new one, on which a server may be running.

    A setting that cannot be set causes a warning, and the server continues. For `is_foreign`, see `behaviour_of`. If
    the old dataset no longer exists, only the property that keeps other snapshot programs away is removed.
    """
    if part.old is None or not datasets.exists(part.old):
        datasets.inherit([part.place], list(NO_SNAPSHOTS))
        return
    wanted = OwnSettings.read(part.old)
    have = explicit_settings.own_values([part.place])[part.place]
    changed = {name: value for name, value in wanted.properties.items() if have.get(name) != value}
    gone = removed_names(have, {*wanted.properties, *(datasets.SAFE_MOUNT if is_foreign else ())})
    _set_all(part.place, {name: value for name, value in changed.items() if name not in SPACE}, warn)
    for name in gone:
        if name not in SPACE:
            drop = partial(datasets.inherit, [part.place], [name])
            _try(f"{name} of {part.place} could not be removed", drop, warn)
    for name in SPACE:
        if name in changed or name in gone:
            _give_room(part, name, changed.get(name, "none"), warn)
        elif name in GUARANTEES and name in wanted.properties:
            # An interrupted run has already set the reservation on the new dataset.
            _release(part.old, name)
    _give_rights(part.place, wanted.rights, warn)


def _set_all(place: str, values: Mapping[str, str], warn: Warn) -> None:
    try:
        datasets.set_properties(place, values)
    except CommandTimeout:
        raise
    except ZsnapdbError:
        # At least one value cannot be set, so set the values one by one.
        for name, value in values.items():
            _set(place, name, value, warn)


def _set(place: str, name: str, value: str, warn: Warn) -> bool:
    text = f"{place} could not get {name}={printable(value[:200])} of the dataset that it replaced"
    return _try(text, partial(datasets.set_properties, place, {name: value}), warn)


def _try(what: str, change: Callable[[], None], warn: Warn) -> bool:
    try:
        change()
    except CommandTimeout:
        raise
    except ZsnapdbError as error:
        warn(f"{what}: {error.message}")
        return False
    return True


def _give_room(part: PromotePart, name: str, value: str, warn: Warn) -> None:
    """Set a quota or a reservation.

    If the pool has space for two reservations, the old dataset keeps its reservation until the new dataset has one.
    """
    assert part.old is not None, "the caller has read it"
    if name not in GUARANTEES or value in _NOTHING:
        _set(part.place, name, value, warn)
        return
    try:
        datasets.set_properties(part.place, {name: value})
    except CommandTimeout:
        raise
    except ZsnapdbError:
        _release(part.old, name)
        _set(part.place, name, value, warn)
    _release(part.old, name)


def _release(old: str, name: str) -> None:
    """Remove the reservation from the old dataset, and record its size in a property."""
    seen = datasets.properties(old, [name])[name]
    if seen.value not in _NOTHING:
        datasets.set_properties(old, {RELEASED[name]: seen.value})
        datasets.set_properties(old, {name: "none"})


def _give_rights(place: str, wanted: Collection[Right], warn: Warn) -> None:
    have = explicit_settings.rights_on(place)
    missing, foreign = set(wanted) - have, have - set(wanted)
    if missing:
        _try(
            f"rights (zfs allow) could not be given on {place}",
            partial(explicit_settings.give_rights, place, missing),
            warn,
        )
    if foreign:
        _try(
            f"rights (zfs allow) could not be taken on {place}",
            partial(explicit_settings.take_rights, place, foreign),
            warn,
        )


def refuse_exchange(plan: RestorePlan) -> None:
    """Raise PreflightError if ZFS would refuse a rename of the exchange, or if encrypted data would become unencrypted.

    Nothing is changed. A single `zfs` command queries all datasets. If the restore exchanges no datasets, no command is
    run.
    """
    step = plan.promotion
    if step is None:
        return
    tops = [(source, place) for source, place in step.renames if source.startswith(plan.layout.top)]
    origins = {clone.dataset: clone.origin.partition("@")[0] for clone in plan.clones}
    shown = {
        name: datasets.existing(name)
        for source, place in tops
        for name in (origins.get(source, source), place, place.rpartition("/")[0], source.rpartition("/")[0])
    }
    seen = encryption.at_rest(shown.values())
    own_keys = set(plan.with_own_keys)
    for source, place in tops:
        # A received dataset inherits encryption from the dataset above it, unless its stream is raw (zfs-receive(8)).
        own = DatasetEncryption("raw", source) if source in own_keys else seen[shown[origins.get(source, source)]]
        home, around = (seen[shown[name.rpartition("/")[0]]] for name in (source, place))
        replaced = seen[place] if shown[place] == place else CLEAR
        objection = objection_to(NameChange(source, place, own, home, around, replaced))
        if objection is not None:
            raise PreflightError(objection.reason, hint=objection.hint)


def judge_keys(plan: RestorePlan) -> list[FitnessFinding]:
    """Return findings about the keys of the datasets that are replaced by clones.

    If there are no clones, no command is run.
    """
    step = plan.promotion
    if step is None or not plan.clones:
        return []
    places = [place for source, place in step.renames if source.startswith(plan.layout.top) and datasets.exists(place)]
    seen = encryption.at_rest(places)
    return [finding for place in places for finding in judge_key(place, seen[place])]


def open_again(places: Iterable[str], warn: Callable[[str], None]) -> None:
    """Load the keys that ZFS unloaded when clones became their own encryption roots.

    If a key is unavailable, this function only warns. If all keys are loaded, change nothing.
    """
    seen = encryption.at_rest(places)
    for root in sorted({one.root for one in seen.values() if one.root is not None and not one.is_unlocked}):
        try:
            encryption.load_key(root)
        except CommandError as error:
            warn(
                f"the key of {root} is not loaded: mounted datasets stay usable, but no others can be mounted before"
                f" you run `zfs load-key {root}` ({error.message})"
            )


def encrypted_sibling(place: str, name: str) -> str | None:
    """Return the dataset `name` next to `place` if `place` is encrypted; else None.

    A clone of `place` that is created under the returned name can later exchange names with `place`.
    """
    parent = place.rpartition("/")[0]
    if not parent or not datasets.exists(place) or encryption.at_rest([place])[place].cipher is None:
        return None
    return f"{parent}/{name}"
