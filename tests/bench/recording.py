"""A real InnoDB dataset as recorded send streams: made in a lab guest once, kept in the lab's cache."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cache import Cache, digest
from tests.lab.guest import Guest, Lab

SCRIPT = Path(__file__).parent / "inside" / "record.py"
ROWS = "shop 1"
"""Which rows; another word where the script makes other ones."""
TABLE_BYTES = 1_400_000_000
"""What the tables' files have before the streams are made."""


@dataclass(frozen=True)
class Recording:
    """Send streams of one data volume.

    A full stream, a full stream compressed as on disk, and the increment after a change of 1 % of the rows.
    """

    full: Path
    compressed: Path
    change: Path


def recording(cache: Cache) -> Recording:
    """Return the recorded streams, making them in a guest first if the cache has none (some minutes, once)."""
    key = digest(ROWS, str(TABLE_BYTES))
    folder = cache.product("recording", key)
    if not folder.exists():
        cache.forget_older("recording", key)
        print("recording the streams of a real dataset in a guest, once", file=sys.stderr, flush=True)
        made = folder.with_name(f"{folder.name}.making-{os.getpid()}")
        try:
            with Guest.boot(Lab.ready(cache), "mysql") as guest:
                argv = ["/opt/venv/bin/python", f"/checkout/tests/bench/inside/{SCRIPT.name}", str(TABLE_BYTES)]
                guest.run(
                    argv,
                    timeout=3600,
                    sink=lambda _, data: print(data.decode(errors="replace"), end="", file=sys.stderr, flush=True),
                ).check()
                shutil.copytree(guest.out, made)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return Recording(folder / "data.zfs", folder / "data-c.zfs", folder / "change.zfs")
