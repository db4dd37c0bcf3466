"""Which port a clone gets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from zsnapdb.base.errors import PreflightError


def choose_port(first: int, last: int, taken: Collection[int], is_free: Callable[[int], bool]) -> int:
    """Return the lowest port from `first` to `last` that no clone has and that is free on the host.

    PreflightError if there is none.
    """
    for port in range(first, last + 1):
        if port not in taken and is_free(port):
            return port
    raise PreflightError(
        f"no free port from {first} to {last}: clones have {len(taken)} of them",
        hint="destroy a clone, or widen clones.first_port to clones.last_port",
    )
