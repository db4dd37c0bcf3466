"""Undoes the work of a block that failed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def undone_on_error(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` if the block fails.

    The error of the block is raised. If `undo` fails too, a note on that error says so.
    """
    try:
        yield
    except BaseException as error:
        try:
            undo()
        except Exception as second:
            error.add_note(f"the cleanup failed too: {second}")
        raise
