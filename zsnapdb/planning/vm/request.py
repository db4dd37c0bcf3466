"""Checks a request for clones of machines: their names, limits and space. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zsnapdb.base.errors import ExistsError, PreflightError, UsageError
from zsnapdb.planning.clone.lease import Quota, admit

LARGEST = 50
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""The pattern of names of bases and machines. Such a name is also used for a dataset, a libvirt domain and a host."""
LATEST_BACKUP = "latest"


def checked_name(name: str) -> str:
    """Return the name. Raises UsageError if it is not a valid name of a base or a machine."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a name of a virtual machine",
            hint="use at most 32 lower-case letters, digits and -; begin with a letter or a digit",
        )
    return name


@dataclass(frozen=True)
class MachineOriginName:
    """The name of the requested origin of machines.

    The field `backup` is LATEST_BACKUP, the id of an instance's backup, or None if the request names no backup.
    """

    name: str
    backup: str | None


def origin_name(text: str) -> MachineOriginName:
    """Return the origin that NAME, NAME@latest or NAME@ID means. Raises UsageError if one side of the @ is empty."""
    name, separator, backup = text.partition("@")
    if not name or (separator and not backup):
        raise UsageError(
            f"{text[:80]!r} is not the name of anything that can be cloned",
            hint="give a base, an instance, or INSTANCE@BACKUP (`zsnapdb list`)",
        )
    return MachineOriginName(name, backup if separator else None)


def names(template: str, count: int) -> tuple[str, ...]:
    """Return the names of the clones: the template, with `{n}` replaced by the numbers from 1 to `count`.

    Raises UsageError if the count is out of range, or if the template results in invalid or duplicate names.
    """
    if not 1 <= count <= LARGEST:
        raise UsageError(f"--count {count} is out of range", hint=f"--count must be 1 to {LARGEST}")
    if count > 1 and "{n}" not in template:
        raise UsageError(
            f"the template {template!r} gives all {count} clones one name", hint="put {n} where the number belongs"
        )
    return tuple(checked_name(template.replace("{n}", str(number))) for number in range(1, count + 1))


def refuse_taken(wanted: Sequence[str], machines: Collection[str], domains: Collection[str]) -> None:
    """Raise ExistsError if a machine of zsnapdb or a libvirt domain has one of the names."""
    for name in wanted:
        if name in machines:
            raise ExistsError(
                f"a virtual machine {name} already exists",
                hint=f"destroy it (`zsnapdb vm destroy {name}`), or choose another --name-template",
            )
        if name in domains:
            raise ExistsError(
                f"libvirt has a domain {name}, which zsnapdb did not make",
                hint="choose another --name-template; zsnapdb does not touch the domain",
            )


def admit_requests(quota: Quota, owner: str, owners: Sequence[str], available: int, count: int) -> None:
    """Raise PreflightError if the owner may not create `count` more machines.

    The error names the limit that was reached.
    """
    current = list(owners)
    for _ in range(count):
        admit(quota, owner, current, available)
        current.append(owner)


@dataclass(frozen=True)
class ZvolSpace:
    """The space of one zvol of a base: its size, its block size and its reservation, in bytes."""

    target: str
    size: int
    block_size: int
    reserved: int

    @property
    def words(self) -> str:
        """A text about the space that a clone of this zvol uses.

        A clone always has the `volblocksize` of the base (zfsprops(7)). It does not get the base's `refreservation`, so
        it is thin (zfs-clone(8), OpenZFS issue 12892).
        """
        reserved = f"the base reserves {self.reserved} bytes, the clone" if self.reserved else "it"
        return f"{self.size} bytes, volblocksize {self.block_size}; {reserved} reserves nothing (thin)"


def refuse_other_pools(pools: Collection[str]) -> None:
    """Raise PreflightError if the zvols are in several pools, because a snapshot request is limited to one pool."""
    if len(set(pools)) > 1:
        raise PreflightError(
            f"the disks of the domain are in several pools: {', '.join(sorted(set(pools)))}",
            hint="move the disks to one pool",
        )


def refuse_obstacles(domain: str, obstacles: Sequence[str]) -> None:
    """Raise PreflightError with a list of all obstacles if the domain cannot be cloned."""
    if obstacles:
        raise PreflightError(
            f"the domain {domain} cannot be cloned: {'; '.join(obstacles)}",
            hint="clones would share these with it; give a domain without them (see `virsh edit`)",
        )
