"""Files that a server writes through its memory: a snapshot has such a change once the kernel has written it back.

With myisam_use_mmap MyISAM changes rows in place in the mapped file, and FLUSH TABLES unmaps it without a sync
(storage/myisam/mi_dynrec.c of both families). The pages lie in the page cache, of which ZFS knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from zsnapdb.base.errors import LockError, ZsnapdbError
from zsnapdb.planning.facts import ServerFacts
from zsnapdb.zfs.command import run

_SWITCHES = ("myisam_use_mmap", "rocksdb_allow_mmap_writes")
_AHEAD_SECONDS = 60.0
"""How long the first of two writes may take, which happens without a lock. Most pages are written by it."""


def is_written_through_memory(facts: ServerFacts) -> bool:
    """Whether the server may change files of tables through its memory.

    A table that was opened while a switch was on stays mapped, so MyISAM tables are enough.
    """
    return "MyISAM" in facts.engines or any(facts.variables.get(name) == "ON" for name in _SWITCHES)


def write_back(mountpoints: Iterable[str], seconds: float = _AHEAD_SECONDS) -> None:
    """Write the changed pages of the file systems back; afterwards a snapshot has them (sync(1), syncfs(2)).

    LockError if that takes longer than `seconds`, or fails.
    """
    places = sorted(set(mountpoints))
    try:
        run(["sync", "--file-system", "--", *places], timeout=max(seconds, 0.1))
    except ZsnapdbError as error:
        raise LockError(
            f"writing mapped files of {', '.join(places)} back: {error.message}",
            hint=f"raise lock.deadline, or switch off on the server: {', '.join(_SWITCHES)}",
        ) from error
