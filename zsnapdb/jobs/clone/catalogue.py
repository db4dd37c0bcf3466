"""The catalogue of the clones on this host, read from the properties of their datasets.

The properties do not record three facts: the last heartbeat of the holder, the server process, and HAProxy's routes.
They are read elsewhere.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from zsnapdb.base.errors import ConsistencyError, DamagedError, ExistsError, PreflightError, UnknownNameError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.clock_record import removal_time
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone import clone_info, expected_clone, haproxy_socket, locks
from zsnapdb.jobs.clone import clone_info as clone_properties
from zsnapdb.jobs.clone.clone_info import (
    CLONE_PROPERTY,
    COMMIT_PROPERTY,
    GROWN_PROPERTY,
    TAKES_NOTHING_OVER,
    TAKES_OVER_PROPERTY,
    CloneClaim,
    CloneInfo,
    CloneRecord,
)
from zsnapdb.jobs.clone.credentials import client_host
from zsnapdb.jobs.dataset_copies import catalogue as copies
from zsnapdb.jobs.dataset_copies import property_fields
from zsnapdb.jobs.dataset_copies.catalogue import CopyDatasets, KnownCopies, P, Properties, R, Verb
from zsnapdb.jobs.dataset_copies.properties import owner_text
from zsnapdb.mysql.process import server
from zsnapdb.mysql.process.server import PRIVATE_FOLDER
from zsnapdb.planning.clone import lease as leases
from zsnapdb.planning.clone.kept_ports import KeptRoute, KeptRoutes
from zsnapdb.planning.clone.lease import read_stamp
from zsnapdb.planning.clone.pool import PoolMark
from zsnapdb.zfs import datasets, snapshots
from zsnapdb.zfs.command import is_number, number_in

_NOTE = re.compile(r"([0-9]{1,19}) ([0-9]{1,19})")


@contextlib.contextmanager
def taking_over(revisions: Iterable[str], most: int) -> Iterator[None]:
    """Run the block with increased quotas: each revision gets `most` more bytes, so that it can take over commits.

    Without the increase, ZFS refuses `zfs promote` if the snapshots to take over do not fit into the quota. After the
    block, users of each clone can write as much as before. A revision without a quota stays without one. The caller
    must hold the locks of the clones.
    """
    begun = []
    for revision in revisions:
        settle_adopted_commits(revision)
        quota = number_in(datasets.properties(revision, ["quota"])["quota"].value, ["zfs", "get", "quota", revision])
        if quota:
            note = f"{quota} {_bytes_of_commits(revision)}"
            datasets.set_properties(revision, {"quota": str(quota + most), TAKES_OVER_PROPERTY: note})
            begun.append(revision)
    try:
        yield
    finally:
        for revision in begun:
            settle_adopted_commits(revision)


def settle_adopted_commits(revision: str) -> None:
    """Set the quota of a revision after a takeover: the earlier quota plus the size of the adopted commits.

    If no takeover is recorded, change nothing. Writes of users after the takeover do not raise the quota.
    """
    seen = datasets.properties(revision, [TAKES_OVER_PROPERTY, GROWN_PROPERTY])
    note = _NOTE.fullmatch(seen[TAKES_OVER_PROPERTY].value) if seen[TAKES_OVER_PROPERTY].is_local else None
    if note is None:
        return
    grown = max(0, _bytes_of_commits(revision) - int(note[2]))
    before = seen[GROWN_PROPERTY].value
    already = int(before) if is_number(before) else 0
    values = {"quota": str(int(note[1]) + grown), GROWN_PROPERTY: str(already + grown)}
    datasets.set_properties(revision, {**values, TAKES_OVER_PROPERTY: TAKES_NOTHING_OVER})


def _bytes_of_commits(revision: str) -> int:
    """Return the sum of the bytes that were written between each commit of the revision and the snapshot before it.

    The takeover of a commit adds these bytes to the dataset. Writes after the takeover do not change this sum
    (`written` of a snapshot, zfsprops(7)).
    """
    seen = snapshots.below(revision, (COMMIT_PROPERTY, "written"))
    return sum(
        number_in(values["written"].value, ["zfs", "get", "written", snapshot.full_name])
        for snapshot, values in seen.items()
        if values[COMMIT_PROPERTY].is_local
    )


CloneVerb = Verb[CloneInfo, P, R]
"""A command on a clone, with the types of its plan and result."""


@dataclass(frozen=True)
class Intention:
    """The steps of a planned change to a clone, one line each. There are no steps if nothing would change.

    `clone` is None if the change affects no clone.
    """

    clone: CloneInfo | None
    steps: tuple[str, ...]


_HOME = "zsnapdb/clones"
_COLUMNS = (
    *property_fields.columns(CloneInfo),
    clone_properties.ROLE_PROPERTY,
    clone_properties.MASKED_PROPERTY,
    clone_properties.GROWN_PROPERTY,
    clone_properties.TAKES_OVER_PROPERTY,
    "used",
    "quota",
    "origin",
)


def home(settings: Settings, pool: str) -> str:
    """Return the dataset that contains all clones of the pool: the configured dataset, else zsnapdb/clones.

    Raises:
        PreflightError: the configured dataset is in another pool.
    """
    return copies.home(settings.clones.dataset, pool, _HOME, "clones.dataset")


def homes(settings: Settings) -> list[str]:
    """Return the existing datasets on this host that may contain clones."""
    return copies.homes(settings.clones.dataset, _HOME)


def known_clones(settings: Settings, host: Host) -> KnownCopies[CloneInfo]:
    """Return the clones on this host, oldest first, including the clones of instances that are no longer configured."""
    # List this host's processes only once for all clones with stopped servers.
    read = partial(_info, host, _routes(settings), users=server.OptionFileUsers())
    seen = copies.known_copies("clone", homes(settings), _COLUMNS, CLONE_PROPERTY, read)
    ordered = sorted(seen.copies, key=lambda info: (info.created, info.name))
    return KnownCopies(seen.what, ordered, seen.unreadable)


def listing(settings: Settings, host: Host) -> list[CloneInfo]:
    """Return the clones on this host whose properties can be read, oldest first."""
    return list(known_clones(settings, host).copies)


def claims(settings: Settings) -> KnownCopies[CloneClaim]:
    """Return the names, ports and other exclusive properties of the clones on this host.

    Only the anchors of the clones are read, not the other datasets.
    """
    return copies.known_copies(
        "clone",
        homes(settings),
        property_fields.columns(CloneClaim),
        CLONE_PROPERTY,
        lambda found: CloneClaim(name=found.name, top=found.anchor, **property_fields.read(CloneClaim, found)),
        depth=1,
        is_named=False,
    )


def _routes(settings: Settings) -> Callable[[], KeptRoutes]:
    return cache(lambda: haproxy_socket.routes_or_none(settings.clones.address))


def _info(
    host: Host, routes: Callable[[], KeptRoutes], found: CopyDatasets, users: server.OptionFileUsers | None = None
) -> CloneInfo:
    top, members = found.anchor, found.members
    known = CloneRecord(name=found.name, top=top, **property_fields.read(CloneRecord, found))
    if known.is_of_nobody and known.owner != clone_info.POOL_OWNER:
        # A handout or a removal would take the clone away from its user.
        raise ValueError(
            f"its {clone_info.POOL_PROPERTY} is {known.pool}, but it has a user: another program set the property;"
            f" `zfs inherit {clone_info.POOL_PROPERTY} {top}` corrects it"
        )
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
    lease, beats = known.lease, known.lease.heartbeat
    if beats is not None:
        lease = replace(lease, heartbeat=clone_info.heartbeat(host, known.name, beats.every, beats.last))
    return CloneInfo(
        **{**vars(known), "lease": lease},
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


def _grown(revision: Properties) -> int:
    recorded = revision[clone_properties.GROWN_PROPERTY]
    return int(recorded.value) if recorded.is_local and is_number(recorded.value) else 0


def _takes_over(revision: Properties) -> bool:
    noted = revision[clone_properties.TAKES_OVER_PROPERTY]
    return noted.is_local and noted.value != clone_properties.TAKES_NOTHING_OVER


def _masked(volumes: Iterable[Properties]) -> str | None:
    """Return the time when the last of the given volumes was masked; None if a volume is not masked."""
    marks = [volume[clone_properties.MASKED_PROPERTY] for volume in volumes]
    is_masked = all(mark.is_local and mark.value != clone_properties.NOT_MASKED for mark in marks) and bool(marks)
    return max(mark.value for mark in marks) if is_masked else None


def no_such_clone(name: str) -> UnknownNameError:
    """Return the error for a name that no clone has.

    The error is the same as for an existing clone that the account may not see.
    """
    return UnknownNameError(
        f"there is no clone {name}", hint="see `zsnapdb clone list`, or `zsnapdb-clone list` for your own", about=()
    )


def find(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Return the clone with the given label or id.

    Raises:
        UnknownNameError: no clone has the name.
        ConsistencyError: several clones have the name.
        DamagedError: the properties of the clone cannot be read.
    """
    one = _of_dataset(settings, host, name)
    if one is not None and one.is_called(name):
        return one
    # After a rename, a handout from the pool or a swap, the clone's label differs from the name of its dataset.
    everything = known_clones(settings, host)
    called = [info for info in everything.copies if info.is_called(name)]
    if len(called) > 1:
        # A swap may have exchanged two names while the properties were read.
        everything = known_clones(settings, host)
        called = [info for info in everything.copies if info.is_called(name)]
    if not called:
        # Another program may have renamed the clone's dataset, or changed its properties.
        claimed = [one.name for one in claims(settings).copies if one.is_called(name)] if everything.unreadable else []
        for one_name in (name, *claimed):
            copies.find_or_none(everything, one_name)
        raise no_such_clone(name)
    if len(called) > 1:
        raise ConsistencyError(
            f"{len(called)} clones have the name {name}, because another program set a property of them",
            hint=f"see `zfs get -r zsnapdb:label,zsnapdb:id {called[0].top.rpartition('/')[0]}`",
            about=tuple(info.owner for info in called),
        )
    return called[0]


def of_dataset(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Return the clone whose dataset has the given name, whatever its label is. Raises the errors of `find`."""
    one = _of_dataset(settings, host, name)
    if one is None:
        raise no_such_clone(name)
    return one


def reread_clone(settings: Settings, host: Host, name: str) -> CloneInfo | None:
    """Return the present state of the clone whose dataset has the given name.

    Return None if the clone no longer exists or its properties cannot be read.
    """
    with contextlib.suppress(DamagedError):
        return _of_dataset(settings, host, name)
    return None


def _of_dataset(settings: Settings, host: Host, name: str) -> CloneInfo | None:
    if not clone_properties.is_clone_name(name):
        return None
    read = partial(_info, host, _routes(settings))
    one = copies.known_copies("clone", homes(settings), _COLUMNS, CLONE_PROPERTY, read, only=name)
    return copies.find_or_none(one, name)


def refuse_other(meant: CloneInfo, now: CloneInfo) -> CloneInfo:
    """Return `now`, the present state of the clone, if it is still the clone `meant`.

    Raises:
        UnknownNameError: a different clone now has the name.
    """
    if now.guid != meant.guid:
        raise UnknownNameError(
            f"clone {meant.label} no longer exists; another clone has its name", hint="nothing was changed"
        )
    return now


def refuse_other_data(first: CloneInfo, other: CloneInfo) -> None:
    """Raise ConsistencyError unless both clones were created from the same snapshots."""
    if first.original_key != other.original_key:
        raise ConsistencyError(
            f"clone {other.label} has other data than {first.label}: somebody renamed or replaced {first.original}",
            hint="run the command again",
        )


def refuse_label(others: Iterable[CloneClaim], label: str) -> None:
    """Raise ExistsError if a clone in `others`, its set or its dataset already uses the label as its name."""
    other = next((one for one in others if one.is_called(label) or label in (one.name, one.set_name)), None)
    if other is not None:
        raise ExistsError(
            f"the name {label} is taken by another clone" + ("" if other.is_called(label) else f", {other.label}"),
            hint=f"choose another name, or run `zsnapdb clone destroy {other.label}`",
            # The existing clone may belong to another owner. Only that owner may see its label.
            about=() if other.is_called(label) else None,
        )


@contextlib.contextmanager
def locked_clone(settings: Settings, host: Host, name: str) -> Iterator[CloneInfo]:
    """Lock the clone with the given label or name, and yield its current state.

    Raises the errors of `ready`.
    """
    dataset = name if is_dataset(settings, name) else find(settings, host, name).name
    while True:
        with locks.lock_clone(dataset):
            info = _of_dataset(settings, host, dataset)
            if info is not None and info.is_called(name):
                yield _settled(settings, host, _refuse_unusable(info, name))
                return
        # The clone was renamed, a swap gave it another dataset, or the name is a label. Lock the clone's present
        # dataset instead.
        dataset = find(settings, host, name).name


def verb(
    settings: Settings,
    host: Host,
    name: str,
    decide: Callable[[CloneInfo], tuple[P, Callable[[], R]]],
    *,
    needs_lease: bool = True,
) -> CloneVerb[P, R]:
    """Return the command for the clone with the given label or name.

    The command raises the errors of `ready` and, with `needs_lease`, of `require_lease` before it calls `decide`.
    """

    def decide_of_live(info: CloneInfo) -> tuple[P, Callable[[], R]]:
        require_lease(host, info)
        return decide(info)

    return Verb(
        lambda: contextlib.nullcontext(ready(settings, host, name)),
        lambda: locked_clone(settings, host, name),
        decide_of_live if needs_lease else decide,
    )


def require_lease(host: Host, info: CloneInfo) -> None:
    """Raise PreflightError if `reap` destroys the clone because its lease has ended."""
    time = removal_time(host)
    lease = leases.settled(info.lease, read_stamp(info.created), time)
    leases.require_lease(lease, time.at, info.label, info.owner)


def _settled(settings: Settings, host: Host, info: CloneInfo) -> CloneInfo:
    """Return the clone with its correct quota. The caller must hold the clone's lock."""
    for revision in info.takes_over:
        settle_adopted_commits(revision)
    return of_dataset(settings, host, info.name) if info.takes_over else info


def is_dataset(settings: Settings, name: str) -> bool:
    """Return whether a dataset in the homes of clones has the given name. No clone gets such a name as a label."""
    possible = [f"{above}/{name}" for above in homes(settings)] if clone_properties.is_clone_name(name) else []
    return any(datasets.exists(dataset) for dataset in possible)


def with_binary(settings: Settings, host: Host, name: str, binary: Path | None) -> Settings:
    """Return the settings in which the clone's instance uses the server program `binary`.

    If `binary` is None, the settings stay unchanged.

    Raises the errors of `find`.
    """
    return settings if binary is None else settings.with_binary(find(settings, host, name).instance, binary)


def ready(settings: Settings, host: Host, name: str) -> CloneInfo:
    """Return the clone with the given name.

    Raises:
        PreflightError: the clone is incomplete, is being destroyed, or has no user yet.
        UnknownNameError: no clone has the name, or another clone has it now (`expected_clone.require`).
    """
    return _refuse_unusable(find(settings, host, name), name)


def _refuse_unusable(info: CloneInfo, name: str) -> CloneInfo:
    expected_clone.require(info, name)
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
"""The name of the account that may use all clones."""


def require_owner(settings: Settings, host: Host, name: str, account: str) -> None:
    """Raise UnknownNameError unless the account owns the clone, or all clones of the set, with the given name.

    If another account owns the clone, the error is the same as for a missing clone, and comes after the same time. Root
    may use all clones.
    """
    if account == ROOT:
        return
    owners = {info.owner for info in listing(settings, host) if _is_meant(info, name)}
    if owners != {owner_text(account)}:
        raise no_such_clone(name)


def _is_meant(info: CloneInfo, name: str) -> bool:
    return info.is_called(name) or info.set_name == name


def instances_of(settings: Settings, host: Host, name: str) -> set[str]:
    """Return the instances of the clone or set of clones with the given name; empty if neither exists."""
    return {info.instance for info in listing(settings, host) if _is_meant(info, name)}


def names_of(settings: Settings, host: Host, name: str) -> set[str]:
    """Return the id and label of the clone with the given name, or of all clones in the set with the given name."""
    clones = [info for info in listing(settings, host) if _is_meant(info, name)]
    return {word for info in clones for word in (info.id, info.label)}
