"""How often the interpreter looks for objects that only each other know."""

from __future__ import annotations

import atexit
import gc

_NEW_OBJECTS = 10_000
"""After so many new objects it looks through the young ones; Python's own number is 700 (gc, set_threshold)."""


def collect_rarely() -> None:
    """Afterwards this process looks for such objects rarely, and not at its end.

    A command makes some hundred thousand objects while it imports its modules, and keeps them. To look through them
    again and again, and once more at the end, took a third of the processor time of a command with little to do.
    """
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    atexit.register(gc.freeze)
