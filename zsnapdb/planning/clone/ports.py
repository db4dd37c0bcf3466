"""Which port a clone gets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from zsnapdb.errors import PreflightError


def choose_port(first: int, last: int, taken: Collection[int], is_free: Callable[[int], bool]) -> int:
    """Return the lowest port from `first` to `last` that no clone has and the host says is free.

    PreflightError if none.
    """
    for port in range(first, last + 1):
        if port not in taken and is_free(port):
            return port
    raise PreflightError(
        f"no free port from {first} to {last}: {len(taken)} are taken by clones",
        hint="destroy a clone, or widen clones.first_port to clones.last_port",
    )
