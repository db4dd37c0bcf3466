"""Whose a clone is, where people share a host."""

from __future__ import annotations

from zsnapdb.config import Settings
from zsnapdb.errors import NotAllowedError
from zsnapdb.jobs.clone.catalogue import listing
from zsnapdb.jobs.clone.properties import owner_text

_ROOT = "root"


def require_owner(settings: Settings, name: str, account: str) -> None:
    """NotAllowedError unless the clone, or each clone of the set of that name, is the account's. Root may all.

    A name that nothing has is not refused: whoever asks for it is told so by the job.
    """
    if account == _ROOT:
        return
    others = {
        info.owner
        for info in listing(settings)
        if name in (info.name, info.set_name) and info.owner != owner_text(account)
    }
    if others:
        raise NotAllowedError(
            f"you may not use clone {name}: it belongs to {', '.join(sorted(others))}, and you are {account}",
            hint="make one of your own with `sudo zsnapdb-clone create`",
        )
