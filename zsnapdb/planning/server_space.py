"""The free space that a database server needs on its volumes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zsnapdb.base.domain_types import pool_of
from zsnapdb.base.quantities import size

START_BYTES = 64 << 20
"""The free space that a server needs to start, in bytes. A starting server rewrites redo logs and undo tablespaces."""
_NAMED = 3
"""The number of datasets that a message names."""


def shows_use(pool: str) -> str:
    """Return a hint that says how to find out what uses the space of a pool."""
    return f"`zfs list -o space -r {pool}` shows what uses it: see Full pool in Troubleshooting"


@dataclass(frozen=True)
class FullVolume:
    """A server's volume with less than `START_BYTES` free.

    The pool has `pool_free` free bytes; None if unknown. The field `used` maps each dataset of the pool to the bytes
    that it keeps without the datasets below it.
    """

    dataset: str
    free: int
    pool_free: int | None = None
    used: Mapping[str, int] | None = None

    @property
    def pool(self) -> str:
        return pool_of(self.dataset)

    def describe(self) -> str:
        """Return a text with the free space, why there is not more (a limit or large datasets), and the effect."""
        needs = f"and a server needs {size(START_BYTES)} to start"
        if self.pool_free is not None and self.pool_free >= START_BYTES:
            return (
                f"{self.dataset} has {size(self.free)} free, {needs}: the pool {self.pool} has {size(self.pool_free)},"
                " but a quota or a reservation keeps them from it"
            )
        largest = sorted((self.used or {}).items(), key=lambda entry: (-entry[1], entry[0]))[:_NAMED]
        most = f"; most is used by {', '.join(f'{name} ({size(used)})' for name, used in largest)}" if largest else ""
        return f"the pool {self.pool} has {size(self.free)} free for {self.dataset}, {needs}{most}"

    def hint(self, unit: str | None) -> str:
        """Return a hint that says how to free space and, if the server's `unit` is stopped, how to start it."""
        start = f", then `systemctl reset-failed {unit}; systemctl start {unit}`" if unit is not None else ""
        return f"free space: {shows_use(self.pool)}{start}"
