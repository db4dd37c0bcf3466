"""Whose a clone is, where people share a host."""

from __future__ import annotations

from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone.catalogue import listing, no_such_clone
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.copies.properties import owner_text

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
