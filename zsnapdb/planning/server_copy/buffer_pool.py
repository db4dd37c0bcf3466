"""The buffer pool of a server that only recovers, replays or is checked, and is stopped afterwards. Pure.

Recovery applies the redo log, and a replay the binlogs, through the buffer pool. With the servers' default of 128 MiB
each page of a large server is read and written again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.planning.server_copy.origin import option_name

OPTION = "innodb_buffer_pool_size"
DEFAULT = 128 << 20
"""The size that a server takes if nothing sets it (refman 8.4 and MariaDB's, "innodb_buffer_pool_size")."""
_CHUNK = 128 << 20
"""A server rounds the size up to a multiple of its chunk (refman 8.4, "innodb_buffer_pool_chunk_size")."""
_OF_FREE = 0.5
"""What the host may have to give besides: the ARC during a receive, production beside the restored server."""
_UNKNOWN = 8 << 30
"""Enough where the backup does not say what its server had, as those of before do not."""
_OF_LIMIT = 0.6
"""A server takes more memory than its buffer pool, and is killed where it takes more than server.memory."""


def buffer_pool(
    options: Sequence[str], variables: Mapping[str, str], free: int | None, limit: int | None
) -> int | None:
    """Return the size of the buffer pool in bytes, larger than the default; None if the server is to have its own.

    `options` are the site's own lines: one that sets the size stays in force. `variables` are those of the backup's
    server, which had a size that was enough. `free` are the bytes of memory that can be had without swapping (None:
    not known). `limit`: the memory that the server may take at most (server.memory).
    """
    if free is None or any(option_name(line) == OPTION for line in options):
        return None
    bounds = [int(free * _OF_FREE)]
    if limit is not None:
        bounds.append(int(limit * _OF_LIMIT))
    had = variables.get(OPTION, "")
    bounds.append(int(had) if had.isdecimal() else _UNKNOWN)
    least = min(bounds) // _CHUNK * _CHUNK
    return least if least > DEFAULT else None


def still(planned: int | None, now: int | None) -> int | None:
    """Return the planned size as far as there is still room for it: memory may be less when a restore goes on."""
    return min(planned, now) if planned is not None and now is not None else None


def lines(size: int | None) -> tuple[str, ...]:
    """Return the lines of the option file for a buffer pool of this size in bytes; none for None."""
    return (f"{OPTION}={size}",) if size is not None else ()
