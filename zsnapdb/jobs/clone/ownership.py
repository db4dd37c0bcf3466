"""Whose a clone is, where people share a host."""

from __future__ import annotations

from zsnapdb.base.errors import NotAllowedError
from zsnapdb.config.settings import Settings
from zsnapdb.jobs.base.host import Host
from zsnapdb.jobs.clone.catalogue import listing
from zsnapdb.jobs.clone.clone_info import CloneInfo
from zsnapdb.jobs.clone.sources import find_commit
from zsnapdb.jobs.copies.properties import owner_text

ROOT = "root"
"""Whoever it is: root may all."""


def require_owner(settings: Settings, host: Host, name: str, account: str) -> None:
    """NotAllowedError unless the clone, or each clone of the set of that name, is the account's. Root may all.

    A name that nothing has is not refused: whoever asks for it is told so by the job.
    """
    if account == ROOT:
        return
    others = {
        info.owner for info in listing(settings, host) if _is_meant(info, name) and info.owner != owner_text(account)
    }
    if others:
        raise NotAllowedError(
            f"you may not use clone {name}: it belongs to {', '.join(sorted(others))}, and you are {account}",
            hint="make one of your own with `sudo zsnapdb-clone create`",
        )


def _is_meant(info: CloneInfo, name: str) -> bool:
    return info.is_called(name) or info.set_name == name


def instances_of(settings: Settings, host: Host, name: str) -> set[str]:
    """Return the instances of the clone, or of the clones of the set, of that name; none if nothing has the name."""
    return {info.instance for info in listing(settings, host) if _is_meant(info, name)}


def names_of(settings: Settings, host: Host, name: str) -> set[str]:
    """Return every name of the clone, or of the clones of the set, of that name."""
    clones = [info for info in listing(settings, host) if _is_meant(info, name)]
    return {word for info in clones for word in (info.id, info.label)}


def require_own_source(settings: Settings, source: str, account: str) -> None:
    """NotAllowedError if the source is a commit of a clone that is not the account's. Root may take all.

    A commit has what its owner wrote into a clone. Sets of the instance itself are for everybody who may make clones.
    """
    commit = find_commit(settings, source) if account != ROOT else None
    if commit is not None and commit.owner != owner_text(account):
        raise NotAllowedError(
            f"you may not use commit {source}: its clone belongs to {commit.owner}, and you are {account}",
            hint="make a clone of the instance itself with `sudo zsnapdb-clone create`",
        )
