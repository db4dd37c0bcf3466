"""The buffer pool of a temporary server that only recovers, replays or is checked. Pure.

Recovery applies the redo log, and a replay the binlogs, through the buffer pool. With the default of 128 MiB, each page
of a large server is read and written many times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zsnapdb.planning.server_copy.source_facts import option_name

OPTION = "innodb_buffer_pool_size"
DEFAULT = 128 << 20
"""The size if nothing sets it (refman 8.4 and MariaDB's, "innodb_buffer_pool_size")."""
_CHUNK = 128 << 20
"""A server rounds the size up to a multiple of its chunk (refman 8.4, "innodb_buffer_pool_chunk_size")."""
_OF_FREE = 0.5
"""The fraction of free memory. The rest is for the ARC during a receive, and for production next to this server."""
_UNKNOWN = 8 << 30
"""The upper bound if the backup does not record the size of its server, as older backups do not."""
_OF_LIMIT = 0.6
"""The fraction of server.memory. A server needs more than its buffer pool, and is killed beyond server.memory."""


def buffer_pool(
    options: Sequence[str], variables: Mapping[str, str], free: int | None, limit: int | None
) -> int | None:
    """Return the size of the buffer pool in bytes, larger than the default; None if the option is not to be set.

    - `options`: the site's own lines; one that sets the size has precedence
    - `variables`: those of the backup's server, whose size was sufficient
    - `free`: bytes of memory that are available without swapping (None: unknown)
    - `limit`: the maximum memory of the server in bytes (server.memory)
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
    """Return the planned size, reduced to the present one: memory may be scarcer when a restore continues."""
    return min(planned, now) if planned is not None and now is not None else None


def lines(size: int | None) -> tuple[str, ...]:
    """Return the lines of the option file for a buffer pool of this size in bytes; none for None."""
    return (f"{OPTION}={size}",) if size is not None else ()
