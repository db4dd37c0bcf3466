"""What an interrupted `zfs receive -s` left in a dataset, and whether a `zfs receive` into it still runs.

A full stream leaves the dataset itself, without a snapshot and locked by ZFS (the property "inconsistent"); an
increment leaves a hidden clone of the last snapshot, `DATASET/%recv`, which no list shows. `zfs destroy` of a dataset
with such a clone fails; `zfs/owned.py` removes it. Tried with OpenZFS 2.3 and 2.4.
"""

from __future__ import annotations

import os
from pathlib import Path

from zsnapdb.zfs import datasets

RESUME_STATE = "receive_resume_token"
"""The property in which the kernel says where a receive goes on; "-" if there is nothing that could (zfsprops(7))."""


def token(dataset: str) -> str | None:
    """Return what the kernel says about the interrupted receive into the dataset; None if none was interrupted.

    A receive that still runs has a token, too. NotThere if the dataset does not exist.
    """
    value = datasets.properties(dataset, [RESUME_STATE])[RESUME_STATE].value
    return None if value in ("", datasets.UNSET) else value


def is_being_received(dataset: str, proc: Path = Path("/proc")) -> bool:
    """Whether a `zfs receive` into the dataset runs on this host, as our own runs start it.

    One whose reader died ends in a moment: it sees the end of its stream. ZFS itself refuses a second one. A process of
    another real uid does not count: everybody chooses the words of his own.
    """
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                status = (entry / "status").read_text(errors="replace")
            except OSError:
                continue
            is_ours = f"\nUid:\t{os.getuid()}\t" in status
            if is_ours and words[1:2] == [b"receive"] and words[-2:-1] == [dataset.encode()]:
                return True
    return False
