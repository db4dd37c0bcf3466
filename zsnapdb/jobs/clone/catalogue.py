"""Lists the clones on this host, by the properties of their datasets.

What changes by itself is asked elsewhere: when a holder last beat, whether a server runs, and where HAProxy leads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from zsnapdb.base.errors import ConsistencyError, DamagedError, ExistsError, PreflightError, UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import haproxy, heartbeat, locks, meant, taken_over
from zsnapdb.jobs.clone import properties as clone_properties
from zsnapdb.jobs.clone.clone_info import CloneClaim, CloneInfo, CloneRecord
from zsnapdb.jobs.clone.credentials import client_host
from zsnapdb.jobs.clone.properties import CLONE_PROPERTY
from zsnapdb.jobs.copies import catalogue as copies
from zsnapdb.jobs.copies import record
from zsnapdb.jobs.copies.catalogue import CopyDatasets, KnownCopies, Properties
from zsnapdb.jobs.copies.properties import owner_text
from zsnapdb.jobs.copies.verb import P, R, Verb
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.clone.addresses import KeptRoute, KeptRoutes
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.zfs import datasets
from zsnapdb.zfs.command import is_number

CloneVerb = Verb[CloneInfo, P, R]
"""A verb on a clone, its plan, and its result."""


@dataclass(frozen=True)
class Intention:
    """The steps of a change, one line each; no steps: nothing would change. `clone` is None if it concerns no clone."""

    clone: CloneInfo | None
    steps: tuple[str, ...]


_HOME = "zsnapdb/clones"
_COLUMNS = (
    *record.columns(CloneInfo),
    clone_properties.ROLE_PROPERTY,
    clone_properties.MASKED_PROPERTY,
    clone_properties.GROWN_PROPERTY,
    clone_properties.TAKES_OVER_PROPERTY,
    "used",
    "quota",
    "origin",
)


def home(settings: Settings, pool: str) -> str:
    """Return the dataset under which all clones in the pool live: the configured dataset, else zsnapdb/clones.

    PreflightError if the configured dataset is in another pool.
    """
    return copies.home(settings.clones.dataset, pool, _HOME, "clones.dataset")


def homes(settings: Settings) -> list[str]:
    """Return the existing datasets on this host under which clones may live."""
    return copies.homes(settings.clones.dataset, _HOME)


def known(settings: Settings, host: Host) -> KnownCopies[CloneInfo]:
    """Return the clones on this host, oldest first, even if their instance is no longer configured."""
    # The processes of this host are looked through once for all clones whose servers do not run.
    read = partial(_info, host, _routes(settings), users=server.OptionFileUsers())
    seen = copies.known("clone", homes(settings), _COLUMNS, CLONE_PROPERTY, read)
    ordered = sorted(seen.copies, key=lambda info: (info.created, info.name))
    return KnownCopies(seen.what, ordered, seen.unreadable)


def listing(settings: Settings, host: Host) -> list[CloneInfo]:
    """Return the clones on this host that can be read, oldest first."""
    return list(known(settings, host).copies)


def claims(settings: Settings) -> KnownCopies[CloneClaim]:
    """Return what the clones on this host have that no other may have. Nothing below their anchors is looked at."""
    return copies.known(
        "clone",
        homes(settings),
        record.columns(CloneClaim),
        CLONE_PROPERTY,
        lambda found: CloneClaim(name=found.name, top=found.anchor, **record.read(CloneClaim, found)),
        depth=1,
        is_named=False,
    )


def _routes(settings: Settings) -> Callable[[], KeptRoutes]:
    """Return what asks HAProxy where it leads, at most once."""
    return cache(lambda: haproxy.routes_or_none(settings.clones.address))


def _info(
    host: Host,
    routes: Callable[[], KeptRoutes],
    found: CopyDatasets,
    users: server.OptionFileUsers | None = None,
) -> CloneInfo:
    top, members = found.anchor, found.members
    known = CloneRecord(name=found.name, top=top, **record.read(CloneRecord, found))
    current = f"{top}/r{known.revision}"
    now = {dataset for dataset in members if dataset == current or dataset.startswith(current + "/")}
    volumes = {
        values[clone_properties.ROLE_PROPERTY].value: dataset
        for dataset, values in members.items()
        if dataset in now and values[clone_properties.ROLE_PROPERTY].is_local
    }
    origins = {role: members[dataset]["origin"].value for role, dataset in volumes.items()}
    quota = int(members[current]["quota"].value) if current in members else 0
    kept = sum(
        int(values["used"].value)
        for dataset, values in members.items()
        if dataset.rpartition("/")[0] == top and dataset != current
    )
    route = KeptRoute(client_host(known.bind_address), known.port)
    return CloneInfo(
        **{**vars(known), "lease": _beaten(host, known)},
        is_led_to=known.kept_port is not None and routes().get(known.kept_port) == route,
        masked=_masked(members[dataset] for dataset in volumes.values()),
        datasets=tuple(members),
        volumes=volumes,
        origins=origins,
        leftovers=tuple(dataset for dataset in members if dataset not in now and dataset != top),
        own_bytes=found.number("used"),
        quota=quota + kept if quota else 0,
        kept_bytes=kept,
        takes_over=tuple(dataset for dataset, values in members.items() if _takes_over(values)),
        grown=_grown(members[current]) if current in members else 0,
        is_independent=all(origin in (datasets.UNSET, "") for origin in origins.values()),
        pid=server.ServerProcess(known.mount / PRIVATE_FOLDER).pid(users),
    )


def _beaten(host: Host, known: CloneRecord) -> CloneLease:
    beats = known.lease.heartbeat
    if beats is None:
        return known.lease
    return replace(known.lease, heartbeat=heartbeat.heartbeat(host, known.name, beats.every, beats.last))


def _grown(revision: Properties) -> int:
    recorded = revision[clone_properties.GROWN_PROPERTY]
    return int(recorded.value) if recorded.is_local and is_number(recorded.value) else 0


def _takes_over(revision: Properties) -> bool:
    noted = revision[clone_properties.TAKES_OVER_PROPERTY]
    return noted.is_local and noted.value != clone_properties.TAKES_NOTHING_OVER


def _masked(volumes: Iterable[Properties]) -> str | None:
    """Return with what all of these volumes were masked; None if one of them is not."""
    marks = [volume[clone_properties.MASKED_PROPERTY] for volume in volumes]
    is_masked = all(mark.is_local and mark.value != clone_properties.NOT_MASKED for mark in marks) and bool(marks)
    return max(mark.value for mark in marks) if is_masked else None


def no_such_clone(name: str) -> UnknownNameError:
    """Return the one answer to a name that no clone has, and to one that a clone has which the asker may not see."""
    return UnknownNameError(
        f"there is no clone {name}", hint="see `zsnapdb clone list`, or `zsnapdb-clone list` for your own", about=()
    )


def find(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Return the clone that people call so, by its label or its id.

    UnknownNameError, DamagedError if it cannot be read.
    """
    one = _of_dataset(settings, host, name)
    if one is not None and one.is_called(name):
        return one
    # A clone that was renamed, that came out of a pool, or that was reset by a swap is not called as its dataset.
    everything = known(settings, host)
    called = next((info for info in everything.copies if info.is_called(name)), None)
    if called is None:
        raise no_such_clone(name)
    return called


def of_dataset(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Return the clone whose dataset has that name, whatever people call it. The errors are those of `find`."""
    one = _of_dataset(settings, host, name)
    if one is None:
        raise no_such_clone(name)
    return one


def again(settings: Settings, host: Host, name: str) -> CloneInfo | None:
    """Return the clone whose dataset has that name as it is now; None if it is gone, or cannot be read any more."""
    with contextlib.suppress(DamagedError):
        return _of_dataset(settings, host, name)
    return None


def _of_dataset(settings: Settings, host: Host, name: str) -> CloneInfo | None:
    if not clone_properties.is_clone_name(name):
        return None
    read = partial(_info, host, _routes(settings))
    one = copies.known("clone", homes(settings), _COLUMNS, CLONE_PROPERTY, read, only=name)
    return copies.find_or_none(one, name)


def refuse_other(meant: CloneInfo, now: CloneInfo) -> CloneInfo:
    """Return the clone as it is now. UnknownNameError if it is another one, which has the name of the one meant."""
    if now.guid != meant.guid:
        raise UnknownNameError(f"clone {meant.label} is gone; another has its name", hint="nothing was changed")
    return now


def refuse_other_data(first: CloneInfo, other: CloneInfo) -> None:
    """Raise ConsistencyError unless both clones were created from the same snapshots, which had the same name."""
    if first.original_key != other.original_key:
        raise ConsistencyError(
            f"clone {other.label} has other data than {first.label}: somebody renamed or replaced {first.original}",
            hint="run the command again",
        )


def refuse_label(others: Iterable[CloneClaim], label: str) -> None:
    """Raise ExistsError if one of these clones, or its set, is called so, or has a dataset of that name."""
    other = next((one for one in others if one.is_called(label) or label in (one.name, one.set_name)), None)
    if other is not None:
        raise ExistsError(
            f"the name {label} is taken by another clone" + ("" if other.is_called(label) else f", {other.label}"),
            hint=f"choose another name, or run `zsnapdb clone destroy {other.label}`",
            # What is called otherwise may be another's, who alone may read its name.
            about=() if other.is_called(label) else None,
        )


@contextlib.contextmanager
def held(settings: Settings, host: Host, name: str) -> Iterator[CloneInfo]:
    """Be the only process that changes the clone of that label or name, and yield it as it is under its lock.

    The errors are those of `ready`.
    """
    dataset = name if is_dataset(settings, name) else find(settings, host, name).name
    while True:
        with locks.on_clone(dataset):
            info = _of_dataset(settings, host, dataset)
            if info is not None and info.is_called(name):
                yield _settled(settings, host, _refuse_unusable(info, name))
                return
        # It was renamed, or has another dataset since a reset, or this dataset is no clone: another lock counts.
        dataset = find(settings, host, name).name


def verb(
    settings: Settings, host: Host, name: str, decide: Callable[[CloneInfo], tuple[P, Callable[[], R]]]
) -> CloneVerb[P, R]:
    """Return the verb on the clone of that label or name. The errors before `decide` are those of `ready`."""
    return Verb(lambda: contextlib.nullcontext(ready(settings, host, name)), lambda: held(settings, host, name), decide)


def _settled(settings: Settings, host: Host, info: CloneInfo) -> CloneInfo:
    """Return the clone with the quota that it has to have. The caller holds its lock."""
    for revision in info.takes_over:
        taken_over.settle(revision)
    return of_dataset(settings, host, info.name) if info.takes_over else info


def is_dataset(settings: Settings, name: str) -> bool:
    """Whether a dataset of this name is where clones are: the clone of this name, if there is one, is not a label."""
    possible = [f"{above}/{name}" for above in homes(settings)] if clone_properties.is_clone_name(name) else []
    return any(datasets.exists(dataset) for dataset in possible)


def with_binary(settings: Settings, host: Host, name: str, binary: Path | None) -> Settings:
    """Return the settings with this server program for the instance of the clone. None changes nothing.

    The errors are those of `find`.
    """
    return settings if binary is None else settings.with_binary(find(settings, host, name).instance, binary)


def ready(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Return the clone of that name. PreflightError if it is being made or destroyed, or is nobody's yet.

    UnknownNameError also if another clone is meant (`meant.require`).
    """
    return _refuse_unusable(find(settings, host, name), name)


def _refuse_unusable(info: CloneInfo, name: str) -> CloneInfo:
    meant.require(info, name)
    info = copies.complete("clone", info)
    if info.is_of_nobody and not info.waits:
        why = (
            "was replaced by a reset" if info.pool is PoolMark.REPLACED else "was refused when it was to be handed out"
        )
        raise PreflightError(
            f"clone {name} of the pool of {info.instance} {why}",
            hint=f"`zsnapdb clone destroy {info.label}` destroys it; the next filling of the pool does, too",
        )
    if info.waits:
        raise PreflightError(
            f"clone {name} waits in the pool of {info.instance}",
            hint=f"`zsnapdb clone create {info.instance}` hands one out; `zsnapdb clone destroy {name}` removes it",
        )
    return info


ROOT = "root"
"""Whoever it is: root may all."""


def require_owner(settings: Settings, host: Host, name: str, account: str) -> None:
    """UnknownNameError unless there is a clone, or a set of clones, of that name and all are the account's.

    A clone of somebody else has the answer of one that is not there, after the same look. Root may all.
    """
    if account == ROOT:
        return
    owners = {info.owner for info in listing(settings, host) if _is_meant(info, name)}
    if owners != {owner_text(account)}:
        raise no_such_clone(name)


def _is_meant(info: CloneInfo, name: str) -> bool:
    return info.is_called(name) or info.set_name == name


def instances_of(settings: Settings, host: Host, name: str) -> set[str]:
    """Return the instances of the clone, or of the clones of the set, of that name; none if nothing has the name."""
    return {info.instance for info in listing(settings, host) if _is_meant(info, name)}


def names_of(settings: Settings, host: Host, name: str) -> set[str]:
    """Return every name of the clone, or of the clones of the set, of that name."""
    clones = [info for info in listing(settings, host) if _is_meant(info, name)]
    return {word for info in clones for word in (info.id, info.label)}
