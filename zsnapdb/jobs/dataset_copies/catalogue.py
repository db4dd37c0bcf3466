"""The catalogue of one kind of copies on this host, read from dataset properties.

The module also contains the base class of commands on a copy.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from zsnapdb.base.domain_types import Snapshot, pool_of
from zsnapdb.base.errors import DamagedError, NotFound, PreflightError, UnknownNameError
from zsnapdb.base.patterns import is_line
from zsnapdb.jobs.base.snapshot_set_properties import INSTANCE_PROPERTY
from zsnapdb.jobs.dataset_copies.properties import (
    CHANGED_PROPERTY,
    EXPIRES_PROPERTY,
    HALF_MADE,
    PHASE_PROPERTY,
    PROTECTED_PROPERTY,
    CopyPhase,
    read_lease,
)
from zsnapdb.planning.clone.lease import CloneLease
from zsnapdb.zfs import datasets, destruction, snapshots
from zsnapdb.zfs.command import is_number
from zsnapdb.zfs.datasets import Property
from zsnapdb.zfs.destruction import Mark

Properties = Mapping[str, Property]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


class NamedCopy(Protocol):
    """The attributes of every copy that has a name for users."""

    @property
    def name(self) -> str:
        """The name that a user gave the copy."""

    @property
    def phase(self) -> CopyPhase:
        """The phase of the copy."""


C = TypeVar("C")
N = TypeVar("N", bound=NamedCopy)


@dataclass(frozen=True)
class CopyDatasets:
    """The datasets of one copy with their properties, parent datasets first. The first dataset is the anchor."""

    name: str
    anchor: str
    members: Mapping[str, Properties]

    @property
    def facts(self) -> Properties:
        return self.members[self.anchor]

    def text(self, key: str) -> str:
        """Return a property of the anchor.

        Raises:
            ValueError: the property is not a single line.
        """
        value = self.facts[key].value
        if not is_line(value):
            raise ValueError(f"{key} is not one line")
        return value

    def number(self, key: str) -> int:
        """Return a property of the anchor that is a whole number.

        Raises:
            ValueError: the property is not a whole number; the message names the property.
        """
        value = self.text(key)
        if not is_number(value):
            raise ValueError(f"{key} is {value!r}, which is not a number")
        return int(value)

    def phase(self) -> CopyPhase:
        """Return the phase of the copy.

        Raises:
            ValueError: the property contains no known phase, or is not set on the anchor itself.
        """
        stated = self.facts[PHASE_PROPERTY]
        if not stated.is_local or stated.value not in set(CopyPhase):
            raise ValueError(
                f"{PHASE_PROPERTY} is {stated.value!r}, which is not a phase; a complete copy has the phase ready"
            )
        return CopyPhase(stated.value)

    def lease(self) -> CloneLease:
        """Return the lease of the copy. If a time in the lease is unreadable, the time counts as "never"."""
        return read_lease(*map(self.text, (EXPIRES_PROPERTY, PROTECTED_PROPERTY, CHANGED_PROPERTY)))


@dataclass(frozen=True)
class UnreadableCopy:
    """A copy whose properties cannot be read, because another program changed them.

    No job changes or removes such a copy.
    """

    what: str
    name: str
    anchor: str
    instance: str
    reason: str
    repair: str = ""
    former: str = ""
    """The name in the copy's properties, if its dataset has another name."""

    @property
    def hint(self) -> str:
        """The hint for a user who wants to repair or remove the copy."""
        return self.repair or (
            f"correct the properties (`zfs get all {self.anchor}` shows them), or destroy its datasets by hand; of one"
            " that two pools have, export the pool with the copy"
        )


@dataclass(frozen=True)
class KnownCopies(Generic[C]):
    """The readable and the unreadable copies of one kind. `what` is the name of this kind in messages."""

    what: str
    copies: Sequence[C]
    unreadable: Sequence[UnreadableCopy] = ()


def dependents(clones: str) -> tuple[str, ...]:
    """Return the datasets that were cloned from a snapshot, according to its property `clones`."""
    return tuple(name for name in clones.split(",") if name not in ("", datasets.UNSET))


def snapshot_together(names: Sequence[str], properties: Mapping[str, str]) -> list[Snapshot]:
    """Create all snapshots in one request, and return them in the order of `names`.

    ZFS must create all snapshots in one transaction group.
    """
    pending = snapshots.PendingSnapshots.of(list(names), properties)
    pending.start()
    pending.finish()
    made = snapshots.describe(list(names))
    snapshots.check_one_group(made)
    return made


@contextlib.contextmanager
def destroying(anchor: str, *marks: Mark) -> Iterator[list[str]]:
    """Yield the datasets below the anchor of a copy, so that the block destroys them.

    After the block, destroy the anchor. Meanwhile, the copy's phase prevents other processes from using the copy. If
    this process is interrupted, the next sweep continues.

    Raises:
        NotOursError: a dataset does not have the mark of the copy; nothing was changed.
    """
    members = destruction.members(anchor, *marks)
    if members:
        datasets.set_properties(anchor, {PHASE_PROPERTY: CopyPhase.DESTROYING})
    yield [name for name in members if name != anchor]
    destruction.destroy_datasets([name for name in members if name == anchor], *marks, with_snapshots=True)


def homes(configured: str | None, below: str) -> list[str]:
    """Return the existing parent datasets of copies: the configured dataset, else the dataset `below` in each pool."""
    possible = [configured] if configured else [f"{pool}/{below}" for pool in datasets.pools()]
    return [dataset for dataset in possible if datasets.exists(dataset)]


def home(configured: str | None, pool: str, below: str, key: str) -> str:
    """Return the dataset for new copies in the pool: the configured dataset, else the dataset `below` in the pool.

    Raises:
        PreflightError: the dataset in the setting `key` is in another pool.
    """
    chosen = configured or f"{pool}/{below}"
    if pool_of(chosen) != pool:
        raise PreflightError(
            f"{key} {chosen} is not in the pool {pool}, where the data is",
            hint=f"set {key} to a dataset in the pool {pool}: a ZFS clone lives in the pool of its snapshot",
        )
    return chosen


def known_copies(
    what: str,
    above: Iterable[str],
    columns: Sequence[str],
    mark: str,
    read: Callable[[CopyDatasets], C],
    only: str | None = None,
    depth: int | None = None,
    *,
    is_named: bool = True,
) -> KnownCopies[C]:
    """Return the copies whose anchors are children of one of the datasets in `above`.

    `read` creates the copy object from the copy's datasets. `mark` is the property with the name of the copy. If `read`
    raises ValueError or DamagedError, the copy is listed as unreadable. If `only` is a name, only the copy with this
    name is read. `depth` is the number of dataset levels below `above` that are read. None means all levels, and 1
    means only anchors. `is_named` says that users identify a copy only by its name. In this case, if copies in two
    pools have the same name, for example after `zpool split`, both copies are listed as unreadable.
    """
    copies: list[C] = []
    unreadable = []
    keys = (*columns, PHASE_PROPERTY, INSTANCE_PROPERTY)
    seen = {dataset: _listed(dataset, keys, mark, only, depth) for dataset in above}
    there = [found for dataset, listed in seen.items() for found in _below(dataset, listed, mark)]
    anchors: dict[str, list[str]] = {}
    for found in there:
        anchors.setdefault(found.name, []).append(found.anchor)
    for found in there:
        try:
            if is_named and len(anchors[found.name]) > 1:
                raise ValueError(f"two copies have that name: {' and '.join(anchors[found.name])}")
            copies.append(read(found))
        except (ValueError, DamagedError) as error:
            instance = found.facts[INSTANCE_PROPERTY].value
            reason = " ".join(str(error).split())
            unreadable.append(UnreadableCopy(what, found.name, found.anchor, instance, reason))
    for dataset, listed in seen.items():
        for anchor, former in _unmarked(dataset, listed, mark).items():
            name, instance = anchor.rpartition("/")[2], listed[anchor][INSTANCE_PROPERTY].value
            reason = f"its {mark} is {former or 'not set'}: another program " + (
                "renamed its dataset, or set the property" if former else "changed the property"
            )
            repair = f"`zfs set {mark}={name} {anchor}` corrects it"
            if former:
                repair = f"`zfs rename -u {anchor} {dataset}/{former}` or {repair}"
            unreadable.append(UnreadableCopy(what, name, anchor, instance, reason, repair, former))
    return KnownCopies(what, copies, unreadable)


def _listed(
    above: str, columns: Sequence[str], mark: str, only: str | None, depth: int | None
) -> Mapping[str, Properties]:
    top = above if only is None else f"{above}/{only}"
    try:
        return datasets.children(top, (*dict.fromkeys(columns), mark), depth)
    except NotFound:
        return {}


def _unmarked(above: str, listed: Mapping[str, Properties], mark: str) -> Mapping[str, str]:
    """Return the anchors whose mark differs from their name.

    Map each anchor to the name in its mark, or to "" if the mark contains no valid name. Another program renamed these
    datasets, or changed their marks.
    """
    found = {}
    for dataset, properties in listed.items():
        parent, _, name = dataset.rpartition("/")
        marked = properties[mark]
        if parent == above and properties[PHASE_PROPERTY].is_local and marked != Property(name, "local"):
            found[dataset] = marked.value if marked.is_local and _NAME.fullmatch(marked.value) else ""
    return found


def _below(above: str, listed: Mapping[str, Properties], mark: str) -> Iterator[CopyDatasets]:
    groups: dict[str, dict[str, Properties]] = {}
    for dataset in sorted(listed, key=lambda dataset: (dataset.count("/"), len(dataset), dataset)):
        name = dataset[len(above) + 1 :].partition("/")[0]
        if name and listed[dataset][mark] == Property(name, "local"):
            groups.setdefault(name, {})[dataset] = listed[dataset]
    for name, members in groups.items():
        if f"{above}/{name}" in members:
            yield CopyDatasets(name, f"{above}/{name}", members)


def find(known: KnownCopies[N], name: str) -> N:
    """Return the copy with the given name.

    Raises:
        UnknownNameError: no copy has the name; the hint lists the existing copies.
        DamagedError: the copy cannot be read.
    """
    copy = find_or_none(known, name)
    if copy is None:
        names = ", ".join(other.name for other in known.copies) or "none"
        raise UnknownNameError(f"there is no {known.what} {name!r}", hint=f"existing: {names}")
    return copy


def find_or_none(known: KnownCopies[N], name: str) -> N | None:
    """Return the copy with the given name; None if there is none.

    Raises:
        DamagedError: the copy cannot be read.
    """
    found = next((copy for copy in known.copies if copy.name == name), None)
    for item in known.unreadable:
        if item.name == name or (found is None and item.former == name):
            message = f"the properties of the {item.what} {name} cannot be read: {item.reason}"
            raise DamagedError(message, hint=item.hint)
    return found


def complete(what: str, copy: N) -> N:
    """Return the copy if it is complete.

    Raises:
        PreflightError: the copy is still being created, or is being destroyed.
    """
    if copy.phase in HALF_MADE:
        raise PreflightError(
            f"the {what} {copy.name} is not complete (phase {copy.phase})",
            hint="wait until the other zsnapdb process ends; if no process works on it, run `zsnapdb reap`",
        )
    return copy


P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Verb(Generic[C, P, R]):
    """A command on a copy.

    The plan of a command uses the copy that `seen` yields. Its run uses the locked copy that `held` yields. `decide`
    returns the plan and the function that executes the plan. `decide` itself changes nothing. Errors of `plan` and
    `run` come from `decide`.
    """

    seen: Callable[[], AbstractContextManager[C]]
    held: Callable[[], AbstractContextManager[C]]
    decide: Callable[[C], tuple[P, Callable[[], R]]]

    def plan(self) -> P:
        """Return the actions that a run would take now; change nothing."""
        with self.seen() as copy:
            return self.decide(copy)[0]

    def run(self) -> R:
        """Call `decide` again under the lock of the copy, and execute the decision."""
        with self.held() as copy:
            return self.decide(copy)[1]()
